package launch

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Plugins are what srun's --mpi may be here, and "auto": that of the MPI with which
// cascaded is built. CrayShasta was never run, for want of a Cray.
var Plugins = []string{"auto", "none", "pmix", "pmi2", CrayShasta}

// CrayShasta is the plugin for Cray MPICH.
const CrayShasta = "cray_shasta"

// ErrPlugin means a value of --mpi that is not in Plugins, or that does not suit the
// program.
var ErrPlugin = errors.New("launch: this --mpi can not be used")

// pluginOf returns the plugin for the MPI that a program is linked with; "none" without
// any, and then ranks talk over TCP.
func pluginOf(program string) (string, error) {
	file, err := elf.Open(program)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return "none", nil // a script around it
	}
	if err != nil {
		return "", fmt.Errorf("launch: cascaded: %w", err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return "", fmt.Errorf("launch: %s: %w", program, err)
	}
	for _, l := range libraries {
		switch {
		case strings.HasPrefix(l, "libmpi_cray.so"), strings.HasPrefix(l, "libmpi_gnu"):
			return CrayShasta, nil
		case strings.HasPrefix(l, "libmpich.so"), l == "libmpi.so.12": // the name in MPICH's ABI
			return "pmi2", nil
		case strings.HasPrefix(l, "libmpi.so"):
			return "pmix", nil
		}
	}
	return "none", nil
}

// plugin decides --mpi for ranks of this program over this fabric.
func plugin(asked, program string, fabric string) (string, error) {
	if !slices.Contains(Plugins, asked) {
		return "", fmt.Errorf("%w: %q: choose one of %s", ErrPlugin, asked, strings.Join(Plugins, ", "))
	}
	built, err := pluginOf(program)
	switch {
	case err != nil:
		return "", err
	case asked != "auto" && asked != "none" && built == "none":
		return "", fmt.Errorf("%w: %s: %s is built without MPI: leave --mpi out, and ranks talk over TCP", ErrPlugin, asked, program)
	case asked != "auto":
		return asked, nil
	case fabric == "tcp":
		return "none", nil
	}
	return built, nil
}
