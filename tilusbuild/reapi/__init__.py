"""The Remote Execution API v2: a remote cache at `grpc://`, and compiles on other machines. Needs
`pip install 'tilusbuild[remote]'`."""
