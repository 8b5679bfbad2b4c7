"""The verb `compdb`: the compile commands of a project, for editors."""
