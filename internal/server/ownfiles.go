package server

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errOwnFile means that a client offers a file of a rank, this or another one, as a
// region.
var errOwnFile = errors.New("this file is a rank's own and can be no region: attach memory of the client's")

// ownMagics begin the files that ranks keep (docs/format.md): arenas, segments,
// index files, shared indexes with their rings and holds, and handovers.
var ownMagics = []string{"CASCSHM1", "CASCSEG\n", "CASCIDX\n", "CASCIDX1", "CASCTCH1", "CASCHLD1", "CASCHND1"}

// refuseOwn returns errOwnFile for a descriptor of this rank's arena, however it was
// opened, and of any file that begins as those of ranks do: a LOAD would write
// over the blocks in it.
func (s *Server) refuseOwn(fd int) error {
	var is, own unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return fmt.Errorf("descriptor of a region: %w", err)
	}
	if a, ok := s.opt.Store.Arena(); ok && unix.Fstat(a.FD, &own) == nil && own.Dev == is.Dev && own.Ino == is.Ino {
		return errOwnFile
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // what else it can not be is for others to say, and reading may wait
	}
	var magic [8]byte
	if n, _ := unix.Pread(fd, magic[:], 0); n == len(magic) {
		for _, m := range ownMagics {
			if m == string(magic[:]) {
				return errOwnFile
			}
		}
	}
	return nil
}
