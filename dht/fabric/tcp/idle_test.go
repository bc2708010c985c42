package tcp

import (
	"slices"
	"sync"
	"testing"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

// idleOf lists the peers to which payload streams are open, all of them idle, the one that
// was used last last.
func idleOf(t *testing.T, f *Fabric) (peers []fabric.Rank) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	open := 0
	for _, l := range f.lives {
		l.mu.Lock()
		if open += len(l.wires); len(l.wires) != len(l.idle) {
			t.Errorf("%v: %d streams, %d idle", l.peer.Rank, len(l.wires), len(l.idle))
		}
		l.mu.Unlock()
	}
	f.idle.mu.Lock()
	defer f.idle.mu.Unlock()
	for e := f.idle.all.Front(); e != nil; e = e.Next() {
		peers = append(peers, e.Value.(*wire).life.peer.Rank)
	}
	if open != len(peers) {
		t.Errorf("%d streams are open, %d idle ones are counted", open, len(peers))
	}
	return peers
}

// TestIdleStreamsAreBounded: of payload streams that are not used those are kept that were
// used last, to whatever peers, and reads go on.
func TestIdleStreamsAreBounded(t *testing.T) {
	const peers, most = 5, 3
	f := start(t, options(0, 1))
	f.idle.most = most
	sources := make([]fabric.Source, peers+1)
	for rank := fabric.Rank(1); rank <= peers; rank++ {
		target, _ := serve(t, options(rank, 1))
		f.SetPeer(as(target))
		src, err := (fabrictest.Remote{Fabric: f, Rank: rank}).Put(soon(t), 4096, uint64(rank))
		if err != nil {
			t.Fatal(err)
		}
		sources[rank] = src
	}
	read := func(rank fabric.Rank) {
		t.Helper()
		dst := mapped(t, 4096)
		if err := f.Read(soon(t), rank, sources[rank], dst); err != nil {
			t.Error(err)
		} else if err := fabrictest.Check(dst, uint64(rank), 0); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		for rank := fabric.Rank(1); rank <= peers; rank++ {
			read(rank)
		}
	}
	if got := idleOf(t, f); !slices.Equal(got, []fabric.Rank{3, 4, 5}) {
		t.Errorf("idle are streams to %v", got)
	}
	read(3)
	if got := idleOf(t, f); !slices.Equal(got, []fabric.Rank{4, 5, 3}) {
		t.Errorf("idle are streams to %v after one more read from 3", got)
	}
	f.SetPeer(fabric.Peer{Rank: 5, Incarnation: 1, State: fabric.Gone})
	if got := idleOf(t, f); !slices.Equal(got, []fabric.Rank{4, 3}) {
		t.Errorf("idle are streams to %v when 5 is gone", got)
	}
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			for n := range 20 {
				read(fabric.Rank(1 + (i+n)%(peers-1)))
			}
		})
	}
	readers.Wait()
	if got := idleOf(t, f); len(got) > most {
		t.Errorf("%d idle streams, at most %d", len(got), most)
	}
}
