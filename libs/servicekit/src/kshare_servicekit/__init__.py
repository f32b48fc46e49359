"""The process around a role's node: settings, logs, metrics, readiness and a clean stop.

Read first: `process` (Node, `run_role`, `role_main`), then `process_settings` (flags and KSHARE_ variables),
`properties` (the syntax of `--config`), `logs` and `metrics`.
"""
