"""The fault laboratory: what makes trials, runs them, and judges what they left (docs/testing.md).

world       a toolkit, a project and its caches in memory; trials start from copies of them
server      a process that has imported tilusbuild, and forks itself for each command
injector    the seam under Python that fails when it is told to
oracle      the one judgement of what a fault left behind
GROUPS      `registry`: the ways to fail, each a generator of trials
"""
