"""What this optional room brings: see tilusbuild/rooms.py."""

BRINGS = {
    "remote backend": dict.fromkeys(("grpc", "grpcs"), "tilusbuild.reapi.backend:ReapiBackend"),
    "remote executor": dict.fromkeys(("grpc", "grpcs"), "tilusbuild.reapi.sharing:Sharing"),
}
