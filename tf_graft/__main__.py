"""`python -m tf_graft` is `tf-graft`."""

from tf_graft.cli import main

if __name__ == "__main__":
    main()
