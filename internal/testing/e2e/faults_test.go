package e2e

import (
	"debug/elf"
	"strings"
	"testing"
)

// Nothing that makes steps of a load fail is in a program that serves.
func TestProgramsHaveNoFaults(t *testing.T) {
	for _, name := range []string{"cascaded", "cascade", "cascade-bench"} {
		f, err := elf.Open(program(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		ours := 0
		for _, s := range symbols {
			if strings.HasPrefix(s.Name, "cascadekv/internal/inject.") {
				t.Errorf("%s has %s", name, s.Name)
			}
			if strings.HasPrefix(s.Name, "cascadekv/") {
				ours++
			}
		}
		if ours == 0 {
			t.Errorf("%s has no symbols to look at", name)
		}
	}
}
