package lint

import "slices"

// dynamic are the packages that load a C library at run time. A program with one of
// them needs the machine's loader and C library.
var dynamic = []string{"gpu/cuda", "gpu/hbm", "gpu/nvml", "internal/testing/fakecuda", "cmd/cascade-gpu", "cmd/cascade-gpu/hbmbench"}

// loaders are the modules that do that.
var loaders = []string{"github.com/ebitengine/purego", "github.com/NVIDIA/go-nvml"}

// checkStatic keeps such packages among themselves.
func checkStatic(p pkg) []finding {
	if slices.Contains(dynamic, p.dir) {
		return nil
	}
	var found []finding
	for _, f := range p.code() {
		for _, spec := range f.tree.Imports {
			target := importPath(spec)
			own := len(target) > len(module) && target[:len(module)] == module && slices.Contains(dynamic, target[len(module)+1:])
			if own || slices.ContainsFunc(loaders, func(module string) bool { return within(target, module) }) {
				found = append(found, finding{p.at(f, spec.Pos()), p.dir + " imports " + target})
			}
		}
	}
	return found
}
