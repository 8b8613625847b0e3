"""Magics (`%name`, `%%name`) and shell commands (`!command`) of cells."""
