package dht

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// Read copies located blocks out of their owners' memory, each into its Dst, which
// must be arena memory of exactly its size, and sets its Err. The blocks of one owner
// are read together, at most fabric.MaxBatch at a time; those of several at the same
// time. It tries the owners of a block in turn, each some times more if the block
// moves there meanwhile. Its checksum is the caller's to check. Errors: ErrGone,
// ctx's; one with a Done method as fabric.Fabric.Read says: Dst is not the caller's
// until then.
func (n *Node) Read(caller context.Context, reads []directory.Read) {
	ctx, cancel := context.WithTimeout(caller, n.o.ReadDeadline)
	defer cancel()
	all := make([]reading, 0, len(reads))
	for i := range reads {
		r := reading{Read: &reads[i], owners: n.inMemory(reads[i].Copies, int64(len(reads[i].Dst)))}
		if r.Err = ErrGone; len(r.owners) > 0 {
			all = append(all, r)
		}
	}
	for len(all) > 0 {
		n.readRound(ctx, caller, all)
		rest := all[:0]
		for _, r := range all {
			r.owners = r.owners[1:]
			if r.Err != nil && !lingers(r.Err) && ctx.Err() == nil && len(r.owners) > 0 {
				rest = append(rest, r)
			}
		}
		all = rest
	}
	for i := range reads {
		if r := &reads[i]; r.Err != nil && !lingers(r.Err) && ctx.Err() == nil && !errors.Is(r.Err, ErrGone) {
			r.Err = errors.Join(ErrGone, r.Err)
		}
	}
}

// reading is a read under way.
type reading struct {
	*directory.Read
	owners []*directory.Statement // to be tried, in this order
}

// inMemory lists the copies to read, suspects' last.
func (n *Node) inMemory(copies []directory.Statement, size int64) (owners []*directory.Statement) {
	v := n.view.Load()
	for _, state := range []fabric.State{fabric.Alive, fabric.Suspect} {
		for i := range copies {
			// Readers begin at different owners, to share the load.
			s := &copies[(i+int(n.self))%len(copies)]
			if s.Memory != nil && s.Info.Size == size && v.state(s.Owner) == state && !v.dead(s.Owner, s.Incarnation) {
				owners = append(owners, s)
			}
		}
	}
	return owners
}

// share is reads that are made together: those with another owner to try leave half
// of the time for it.
type share struct {
	owner fabric.Rank
	last  bool
}

// readRound reads each block from the first of its owners.
func (n *Node) readRound(ctx, caller context.Context, all []reading) {
	shares := map[share][]reading{}
	for _, r := range all {
		k := share{r.owners[0].Owner, len(r.owners) == 1}
		shares[k] = append(shares[k], r)
	}
	var wait sync.WaitGroup
	for k, part := range shares {
		if len(shares) == 1 {
			n.readShare(ctx, caller, k, part)
		} else {
			wait.Go(func() { n.readShare(ctx, caller, k, part) })
		}
	}
	wait.Wait()
}

func (n *Node) readShare(ctx, caller context.Context, k share, all []reading) {
	if end, ok := ctx.Deadline(); ok && !k.last {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	for len(all) > 0 {
		part := all[:min(len(all), fabric.MaxBatch)]
		all = all[len(part):]
		n.readFrom(ctx, caller, k.owner, part)
	}
}

func lingers(err error) bool {
	var l fabric.Lingering
	return errors.As(err, &l)
}

// readFrom reads from one owner until ctx ends.
func (n *Node) readFrom(ctx, caller context.Context, owner fabric.Rank, part []reading) {
	if !n.mayAsk(owner) {
		for _, r := range part {
			r.Err = fmt.Errorf("dht: %v: %w", owner, errSuspect)
		}
		return
	}
	reads := make([]fabric.Read, len(part))
	for i, r := range part {
		reads[i] = fabric.Read{Source: r.owners[0].Source(), Dst: r.Dst}
	}
	fabric.ReadBatch(ctx, n.fab, owner, reads)
	n.heardOf(caller, owner, reads)
	var moved sync.WaitGroup
	for i, r := range part {
		if r.Err = reads[i].Err; errors.Is(r.Err, fabric.ErrStale) {
			moved.Go(func() { r.Err = n.readMoved(ctx, caller, r) })
			continue
		}
		n.stats.read(len(r.Dst), r.Err)
	}
	moved.Wait()
}

// heardOf passes on what a batch shows of a peer's health: how its first read ended,
// and the first one that ended otherwise.
func (n *Node) heardOf(caller context.Context, owner fabric.Rank, reads []fabric.Read) {
	first := reads[0].Err
	n.heard(caller, owner, first)
	for i := range reads {
		if err := reads[i].Err; (err == nil) != (first == nil) {
			n.heard(caller, owner, err)
			return
		}
	}
}

// maxMoves is how many times a read follows a block that moves while it is read.
const maxMoves = 4

// readMoved reads a block that has moved within its owner's memory since its home
// heard of it, from where the owner says that it is.
func (n *Node) readMoved(ctx, caller context.Context, r reading) error {
	s, err := r.owners[0], error(fabric.ErrStale)
	for moves := 0; errors.Is(err, fabric.ErrStale) && moves < maxMoves; moves++ {
		n.stats.stale.Add(1)
		is, werr := n.where(ctx, s)
		if werr != nil {
			return werr
		}
		if is.Memory == nil || !is.Agrees(s) {
			gone := *s
			gone.Memory = nil
			n.Invalidate(gone)
			return ErrGone
		}
		err = n.fab.Read(ctx, s.Owner, is.Source(), r.Dst)
		n.heard(caller, s.Owner, err)
	}
	n.stats.read(len(r.Dst), err)
	return err
}

// where asks an owner for its newest statement.
func (n *Node) where(ctx context.Context, s *directory.Statement) (*directory.Statement, error) {
	var is directory.Statement
	answer, err := n.call(ctx, s.Owner, kindWhere, &keysMessage{Namespace: s.Name.Namespace, Keys: []string{s.Name.Key}})
	if err == nil {
		err = decode(answer, &is)
	}
	return &is, err
}
