package mpi

import "strings"

// Names of the libraries that are known by name.
const (
	OpenMPI = "Open MPI"
	MPICH   = "MPICH"
)

// Version is which MPI library is in use.
type Version struct {
	Name   string `json:"name"`   // OpenMPI, MPICH, or the first words of the library's own text
	Number string `json:"number"` // as in "4.1.4"; "" when unknown
}

// String is name and number.
func (v Version) String() string { return strings.TrimSpace(v.Name + " " + v.Number) }

// parseVersion reads the text of MPI_Get_library_version, of which no two
// libraries have the same kind.
func parseVersion(text string) Version {
	first, _, _ := strings.Cut(strings.TrimRight(text, "\x00"), "\n")
	words := strings.FieldsFunc(first, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' || r == ':' })
	switch {
	case len(words) >= 3 && words[0] == "Open" && words[1] == "MPI":
		return Version{OpenMPI, strings.TrimPrefix(words[2], "v")}
	case len(words) >= 3 && words[0] == "MPICH" && words[1] == "Version":
		return Version{MPICH, words[2]}
	}
	return Version{Name: strings.Join(words[:min(len(words), 4)], " ")}
}
