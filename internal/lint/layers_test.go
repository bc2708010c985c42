package lint

import (
	"fmt"
	"slices"
	"strings"
)

// layers are those of docs/architecture.md from top to bottom. A folder stands for all packages
// below it that have no line of their own; those of one folder know each
// other, folders on one line do not. "internal" stands for the parts, each of
// which is a folder to itself.
var layers = [][]string{
	{"cmd/cascade-gpu"},
	{"cmd", "cmd/cascade-bench", "internal/testing"}, // what runs ranks links no instruments and no test rigs
	{"cmd/manual"},
	{"internal/rank"},
	{"internal/server", "internal/replay", "internal/record", "internal/sim", "internal/preflight"},
	{"internal/plan"},
	{"internal/answers", "internal/args", "internal/simulate"},
	{"internal/admin", "internal/holdings", "internal/transfer", "internal/upgrade"},
	{"slurm"},
	{"cascade"},
	{"cascade/sharedindex", "cascade/coldspace", "cascade/recovery"},
	{"cascade/load"},
	{"cascade/others"},
	{"cascade/writeback"},
	{"cascade/content"},
	{"cascade/eviction"},
	{"cascade/residency"},
	{"cascade/traffic"},
	{"cascade/policy", "cascade/estimate", "cascade/names", "cascade/events", "cascade/tombstones", "cascade/layouts", "cascade/inference", "cascade/identity"},
	{"dht", "lustre", "gpu"},
	{"tiers"},
	{"internal/netio"},
	{"internal"},
}

// vocabulary are the parts that other parts may import.
var vocabulary = []string{"internal/block", "internal/cpus", "internal/crc32c", "internal/units"}

// place returns the layer of a package, 0 at the top, and its folder; false
// for a package that is in no layer.
func place(dir string) (layer int, folder string, ok bool) {
	for i, folders := range layers {
		for _, f := range folders {
			if within(dir, f) && len(f) > len(folder) {
				layer, folder, ok = i, f, true
			}
		}
	}
	if folder == "internal" {
		parts := strings.SplitN(dir, "/", 3)
		folder = strings.Join(parts[:min(len(parts), 2)], "/")
	}
	return layer, folder, ok
}

// within reports whether dir is folder or lies below it.
func within(dir, folder string) bool {
	return dir == folder || strings.HasPrefix(dir, folder+"/")
}

// checkLayers judges the imports of code. Tests may set up what their package
// must not know.
func checkLayers(p pkg) []finding {
	if _, _, ok := place(p.dir); !ok {
		return []finding{{p.dir, "the package has no layer: give it a place in docs/architecture.md and in layers"}}
	}
	var found []finding
	for _, f := range p.code() {
		for _, spec := range f.tree.Imports {
			target, own := strings.CutPrefix(importPath(spec), module+"/")
			if !own {
				continue
			}
			if why := refuse(p.dir, target); why != "" {
				found = append(found, finding{p.at(f, spec.Pos()), why})
			}
		}
	}
	return found
}

// refuse says why one package of the module may not import another; "" when it
// may.
func refuse(from, to string) string {
	fromLayer, fromFolder, _ := place(from)
	toLayer, toFolder, known := place(to)
	parts := len(layers) - 1
	switch {
	case !known:
		return fmt.Sprintf("%s imports %s, which has no layer", from, to)
	case fromFolder == toFolder:
		return ""
	case fromFolder == "cascade/policy":
		return fmt.Sprintf("%s imports %s: policy imports the standard library only", from, to)
	case within(fromFolder, "cascade") && within(to, "tiers") && to != "tiers":
		return fmt.Sprintf("%s imports %s: the store knows the interface in tiers and none of its kinds", from, to)
	case fromLayer == parts && !slices.Contains(vocabulary, toFolder):
		return fmt.Sprintf("%s imports %s: a part knows no other package but %s", from, to, strings.Join(vocabulary, " and "))
	case fromLayer < toLayer || fromLayer == parts:
		return ""
	case fromLayer == toLayer:
		return fmt.Sprintf("%s imports %s, its neighbour in the same layer", from, to)
	}
	return fmt.Sprintf("%s imports %s, which lies above it", from, to)
}
