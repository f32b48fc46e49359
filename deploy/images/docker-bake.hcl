# All images, with their version and revision, for several platforms:
#
#     REGISTRY=registry.example.com/kshare REVISION=$(git rev-parse HEAD) \
#       docker buildx bake -f deploy/images/docker-bake.hcl --push
#
# Several platforms need a builder that has them (`docker buildx create --use`, with QEMU for foreign ones) and --push. For this
# machine alone: PLATFORMS= docker buildx bake -f deploy/images/docker-bake.hcl --load
variable "REGISTRY" { default = "kshare" }
# The version of the packages and of the chart (appVersion); the tag of the images.
variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "unknown" }
variable "PLATFORMS" { default = "linux/amd64,linux/arm64" }
variable "BASE_IMAGE" { default = "python:3.11-slim-bookworm" }

group "default" {
  targets = ["images"]
}

target "images" {
  name = image
  matrix = {
    image = ["gateway", "coordinator", "share-coordinator", "leader", "cli", "all-in-one", "pipeline", "console"]
  }
  context    = "."
  dockerfile = "deploy/images/Dockerfile"
  target     = image
  tags       = ["${REGISTRY}/${image}:${VERSION}"]
  platforms  = PLATFORMS == "" ? [] : split(",", PLATFORMS)
  args = {
    BASE_IMAGE = BASE_IMAGE
    VERSION    = VERSION
    REVISION   = REVISION
  }
}
