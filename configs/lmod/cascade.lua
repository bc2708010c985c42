-- Lmod: install as cascade-kv/VERSION.lua in a folder of MODULEPATH, for a tarball unpacked to /opt/cascade-kv/VERSION.
local root = pathJoin("/opt/cascade-kv", myModuleVersion())

whatis("Name: " .. myModuleName())
whatis("Version: " .. myModuleVersion())
whatis("Description: cache of KV blocks for LLM inference: cascade, cascaded and the Python client")
help([[
cascade launch starts a rank on each node of a Slurm job and an engine beside them: man cascade.
Python: import cascade_kv (it needs numpy).
]])

prepend_path("PATH", pathJoin(root, "bin")) -- man finds share/man by itself
prepend_path("PYTHONPATH", pathJoin(root, "share/cascade-kv/python"))
