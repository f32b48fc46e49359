#!/bin/sh
# install.sh PACKAGE: puts a package of the workspace with its locked dependencies into /opt/kshare, and what is in it
# (CycloneDX) into /opt/kshare/sbom.cdx.json. Run by the Dockerfile.
set -eu
package=$1
if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi
/uv/bin/uv sync --quiet --frozen --no-dev --no-editable --package "$package" --python python3.11
/uv/bin/uv export --quiet --frozen --no-dev --package "$package" --format cyclonedx1.5 --preview-features sbom-export \
    --output-file /opt/kshare/sbom.cdx.json > /dev/null
