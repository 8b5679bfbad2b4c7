"""Programs from other machines, and for them: the remote cache behind `engine.inbox.Remote`."""
