package parttest

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// Names returns n names of a graph of their own.
func Names(n int) (all []*names.Name) {
	g := names.New(0)
	for i := range n {
		all = append(all, g.Put(block.Name{Namespace: "ns", Key: fmt.Sprint(i)}, false, &residency.NewBlock(block.Info{}).Block, time.Now()))
	}
	return all
}

// EntryOf returns what a client finds of a name in a table; false for nothing.
func EntryOf(table *shmindex.Table, n *names.Name) (shmindex.Entry, bool) {
	fd, _, err := table.File()
	if err != nil {
		return shmindex.Entry{}, false
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := shmindex.OpenReader(fd)
	if err != nil {
		return shmindex.Entry{}, false
	}
	defer r.Close()
	e, _, ok := r.Lookup(shmindex.FingerprintOf(n.Namespace(), n.Key()))
	return e, ok
}
