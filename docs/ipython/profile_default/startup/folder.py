"""A page's cells run in a folder of their own, which has what the root of a checkout has."""

import atexit
import os
import shutil
import tempfile

folder = tempfile.mkdtemp(prefix="tf_graft_page_")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
for name in ("configs", "docs", "tests"):
    os.symlink(os.path.join(os.environ["CHECKOUT"], name), os.path.join(folder, name))
os.chdir(folder)
del atexit, folder, name, os, shutil, tempfile
