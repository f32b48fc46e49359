"""The web console: share groups, who holds which records, and the roles, live in a browser.

| part | holds |
|---|---|
| `cluster_client` | the cluster over the Kafka protocol, as the signed-in user |
| `role_calls` | RPCs of coordinators and leaders, with the certificate of an administrator |
| `views/` | what each page shows: a reading of the cluster as JSON, computed once for all viewers |
| `live` | streams: a view is computed again and sent on while it has viewers |
| `actions` | what `--console-admin` allows: asked back, judged by the authorizer, written to the audit log |
| `http/` | the server: routes, sessions, guards, the static page |
| `page/` | the page: HTML, CSS and JavaScript modules, without a build step |

The interface between the page and the service is documented in docs/internals/console.md.
"""
