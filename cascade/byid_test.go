package cascade

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

func idOf(p []byte) block.ID { return block.Sum(block.Bits128, p) }

// wantByID checks that a rank serves the bytes by their id, in both of its forms, that every
// kind of look-up finds it, and that no name comes of it. It returns from where it is served.
func (r *jobRank) wantByID(t *testing.T, p []byte) (tier string) {
	t.Helper()
	names := r.Stats().Names
	for _, key := range []string{idOf(p).String(), directory.ContentKey(idOf(p))} {
		for range 4 { // a name that is read so often is kept
			v, err := r.Get(t.Context(), directory.Contents, key)
			if err != nil {
				t.Fatalf("rank %d: get %s: %v", r.node.Self(), key, err)
			}
			if string(v.Bytes()) != string(p) {
				t.Fatalf("rank %d: %s has other bytes", r.node.Self(), key)
			}
			tier = v.Tier()
			v.Release()
		}
		if !r.Contains(t.Context(), directory.Contents, key) || !r.ContainsBatch(t.Context(), directory.Contents, [][]byte{[]byte(key)})[0] {
			t.Errorf("rank %d: %s is not contained", r.node.Self(), key)
		}
		if p := r.Probe(t.Context(), directory.Contents, []string{key}); p.Hits != 1 {
			t.Errorf("rank %d: a probe of %s: %+v", r.node.Self(), key, p)
		}
		info, ok := r.Stat(t.Context(), directory.Contents, key)
		if !ok || info.ID != idOf(p) || info.Size != int64(len(p)) || info.Parent != "" || len(info.Tiers) == 0 {
			t.Errorf("rank %d: stat of %s: %+v, %v", r.node.Self(), key, info, ok)
		}
	}
	if st := r.Stats(); st.Names != names {
		t.Errorf("rank %d: %d names, %d before the gets", r.node.Self(), st.Names, names)
	} else {
		for _, ns := range st.Namespaces {
			if ns.Name == directory.Contents {
				t.Errorf("rank %d reports a namespace for ids", r.node.Self())
			}
		}
	}
	return tier
}

func (r *jobRank) wantNoID(t *testing.T, p []byte) {
	t.Helper()
	key := idOf(p).String()
	if _, err := r.Get(t.Context(), directory.Contents, key); !errors.Is(err, ErrMiss) {
		t.Errorf("rank %d: get %s: %v, want a miss", r.node.Self(), key, err)
	}
	if r.Contains(t.Context(), directory.Contents, key) {
		t.Errorf("rank %d contains %s", r.node.Self(), key)
	}
}

// TestGetByID: what one rank has claimed or keeps is found by its id on all, as long as a name
// of it is left.
func TestGetByID(t *testing.T) {
	j := sharingJob(t, 4, 8<<20)
	p, small := data(1, 20<<10), data(2, 100)
	head := Entry{Namespace: "ns", Key: "a", Parent: "before", Prefix: true}
	if _, err := j.ranks[0].Put(t.Context(), head, p, nil); err != nil {
		t.Fatal(err)
	}
	j.ranks[0].putKey(t, "small", small)
	for _, r := range j.ranks[1:] {
		r.wantNoID(t, p) // no home has heard of it
	}
	if tier := j.ranks[0].wantByID(t, p); tier != "shm" {
		t.Errorf("the rank's own block comes from %s", tier)
	}
	j.ranks[0].wantByID(t, small)
	j.claim(0)
	served := 0
	for _, r := range j.ranks[1:] {
		if r.Contains(t.Context(), directory.Contents, idOf(p).String()) { // else it asked the home that heard of no claim
			served++
			if tier := r.wantByID(t, p); tier != residency.RemoteTier {
				t.Errorf("what rank 0 has claimed comes from %s", tier)
			}
		}
	}
	if served == 0 {
		t.Error("no rank finds what is claimed")
	}
	j.drainAll(0)
	for _, r := range j.ranks {
		r.wantByID(t, p)
	}
	j.ranks[1].wantNoID(t, small)
	j.ranks[0].putKey(t, "b", p)
	j.ranks[2].Delete(t.Context(), "ns", "a")
	j.settle()
	for _, r := range j.ranks {
		r.wantByID(t, p)
	}
	j.ranks[2].Delete(t.Context(), "ns", "b")
	j.settle()
	j.late.Store(int64(time.Minute)) // what was probed waits no more
	for _, r := range j.ranks {
		r.wantNoID(t, p)
	}
}

// TestIDsAreNoNames: who asks by id can read, and change nothing.
func TestIDsAreNoNames(t *testing.T) {
	j := sharingJob(t, 3, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	key := idOf(p).String()
	for _, r := range j.ranks[:2] {
		if _, err := r.Put(t.Context(), Entry{Namespace: directory.Contents, Key: key}, data(2, 100), nil); !errors.Is(err, ErrBadEntry) {
			t.Errorf("put: %v", err)
		}
		for _, key := range []string{key, directory.ContentKey(idOf(p))} {
			if r.Delete(t.Context(), directory.Contents, key) || r.Expire(t.Context(), directory.Contents, key, time.Now().Add(-time.Second)) {
				t.Error("a block was changed by its id")
			}
		}
		if n := r.Clear(t.Context(), directory.Contents, false); n != 0 {
			t.Errorf("%d names were cleared", n)
		}
		for _, bad := range []string{"", "a", key[1:], key + "0", "x" + key[1:], "00000000000000000000000000000000"} {
			if r.Contains(t.Context(), directory.Contents, bad) {
				t.Errorf("%q is the id of a block", bad)
			}
		}
	}
	j.settle()
	for _, r := range j.ranks {
		r.wantAt(t, "a", p)
		r.wantByID(t, p)
	}
}

// TestBytesHaveTheIDThatWasAskedFor: a rank that states another block's place for an id is not
// believed, though size and checksum are right.
func TestBytesHaveTheIDThatWasAskedFor(t *testing.T) {
	for name, inMemory := range map[string]bool{"memory": true, "segment": false} {
		t.Run(name, func(t *testing.T) {
			j := sharingJob(t, 3, 8<<20)
			p, q := data(1, 20<<10), data(2, 20<<10)
			j.ranks[0].putKey(t, "a", p)
			j.drainAll(0)
			st := Local{j.ranks[0].Store}.State("ns", "a")
			if inMemory {
				st.Segment = nil
			} else {
				st.Memory = nil
			}
			st.Name = block.Name{Namespace: directory.Contents, Key: directory.ContentKey(idOf(q)), Seq: directory.ContentSeq}
			st.Info.ID = idOf(q)
			j.ranks[0].node.Publish(st)
			j.settle()
			j.ranks[1].wantNoBytes(t, q)
			if n := j.ranks[1].Stats().Corrupt; n != 1 {
				t.Errorf("%d blocks were corrupt, want 1", n)
			}
			j.ranks[1].wantByID(t, p)
		})
	}
}

// wantNoBytes checks that a rank does not serve an id.
func (r *jobRank) wantNoBytes(t *testing.T, p []byte) {
	t.Helper()
	if _, err := r.Get(t.Context(), directory.Contents, idOf(p).String()); !errors.Is(err, ErrMiss) {
		t.Errorf("get: %v, want a miss", err)
	}
}

// TestGetByIDOfWhatIsSpilled: what the catalogue alone has is found on its own rank, on others,
// and by the rank that adopts it.
func TestGetByIDOfWhatIsSpilled(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), local: t.TempDir(), segmentBytes: 256 << 10}
	j.open(3, 8<<20)
	const blocks, size = 60, 20 << 10
	keeper := j.keeper(blocks, size)
	keeper.space.SpillAll(t.Context())
	j.settle()
	p := data(3, size)
	keeper.state.Mu.Lock()
	spilled := keeper.state.Mu.Blocks[idOf(p)] == nil
	keeper.state.Mu.Unlock()
	if !spilled {
		t.Fatal("nothing is tested")
	}
	for _, r := range j.ranks {
		r.wantByID(t, p)
	}
}

// wantRefs checks how many names of the job stand for a block that a rank is asked about.
func (r *jobRank) wantRefs(t *testing.T, ns, key string, want int) {
	t.Helper()
	info, ok := r.Stat(t.Context(), ns, key)
	if got := Refs(t.Context(), r.Store, ns, key, info); !ok || got != want {
		t.Errorf("rank %d: %q has %d refs (found: %v), want %d", r.node.Self(), key, got, ok, want)
	}
}

// TestRefsAreTheJobs: a name counts once, on whichever ranks it is, and all ranks agree.
func TestRefsAreTheJobs(t *testing.T) {
	j := sharingJob(t, 4, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.ranks[0].putKey(t, "a2", p)
	j.drainAll(0)
	j.ranks[1].putKey(t, "b", p)
	j.ranks[1].putKey(t, "a", p) // as rank 0 has put it
	j.settle()
	// What rank 1 has in memory only counts where it is asked.
	j.ranks[0].wantRefs(t, "ns", "a", 2)
	j.ranks[1].wantRefs(t, "ns", "a", 3)
	j.ranks[2].wantRefs(t, "ns", "b", 3)
	j.drainAll(1)
	agreed := func(key string, want int, ranks ...int) {
		t.Helper()
		for _, i := range ranks {
			j.ranks[i].wantRefs(t, "ns", key, want)
			j.ranks[i].wantRefs(t, directory.Contents, idOf(p).String(), want)
		}
	}
	for range 4 {
		j.ranks[2].wantAt(t, "b", p) // kept there too, in the end
	}
	agreed("a", 3, 0, 1, 2, 3)
	j.ranks[3].putKey(t, "c", p)
	j.drainAll(3)
	agreed("c", 4, 0, 1, 2, 3)
	j.ranks[2].Delete(t.Context(), "ns", "a2")
	j.ranks[1].putKey(t, "b", data(2, 20<<10)) // overwritten
	j.settle()
	agreed("c", 2, 0, 1, 2, 3)
	j.die(3)
	agreed("a", 2, 0, 1, 2)
	small := data(3, 100)
	for i, r := range j.ranks[:2] {
		r.putKey(t, fmt.Sprint("small", i), small)
	}
	j.drainAll(0, 1)
	j.ranks[0].wantRefs(t, "ns", "small0", 1)
}

// TestNamesOfABlockFitAMessage: of a block with very many names a rank lists some.
func TestNamesOfABlockFitAMessage(t *testing.T) {
	j := sharingJob(t, 2, 8<<20)
	p, long := data(1, 20<<10), strings.Repeat("x", 1000)
	const names = 800
	for i := range names {
		j.ranks[0].putKey(t, fmt.Sprint(long, i), p)
	}
	j.drainAll(0)
	list, err := j.ranks[1].node.NamesOf(t.Context(), 0, idOf(p))
	if err != nil || len(list) < names/2 || len(list) >= names {
		t.Errorf("%d names, %v", len(list), err)
	}
}

// TestFiguresAddUpToTheJobs: what the ranks count as their own adds up to the distinct bytes
// of the job and to all its names, whatever copies there are.
func TestFiguresAddUpToTheJobs(t *testing.T) {
	const ranks, blocks, size = 3, 20, 16 << 10
	j := sharingJob(t, ranks, 8<<20)
	sum := func() (own Stats) {
		for _, r := range j.ranks {
			st := r.Stats()
			own.OwnReferenced, own.OwnStored = own.OwnReferenced+st.OwnReferenced, own.OwnStored+st.OwnStored
			own.BytesStored, own.BytesReferenced = own.BytesStored+st.BytesStored, own.BytesReferenced+st.BytesReferenced
		}
		return own
	}
	want := func(when string, names, distinct int64) {
		t.Helper()
		if got := sum(); got.OwnReferenced != names*size || got.OwnStored != distinct*size {
			t.Errorf("%s: %d names for %d blocks, want %d for %d", when, got.OwnReferenced/size, got.OwnStored/size, names, distinct)
		}
	}
	for r := range ranks {
		for i := range blocks {
			j.ranks[r].putKey(t, engineKey(r, i), data(uint64(i), size))
		}
	}
	want("what nobody has written is stored on each", ranks*blocks, ranks*blocks)
	j.drainAll(0, 1, 2)
	want("drained", ranks*blocks, blocks)
	for _, r := range j.ranks {
		for i := range blocks {
			for range 4 {
				r.wantAt(t, engineKey(1, i), data(uint64(i), size)) // and keeps it
			}
		}
	}
	want("copied", ranks*blocks, blocks)
	if all := sum(); all.BytesStored <= blocks*size || all.BytesReferenced <= ranks*blocks*size {
		t.Errorf("no copies: nothing is tested: %+v", all)
	}
	for i := range blocks {
		j.ranks[2].Delete(t.Context(), "ns", engineKey(0, i))
	}
	j.settle()
	want("deleted", (ranks-1)*blocks, blocks)
	for i := range blocks {
		j.ranks[1].putKey(t, engineKey(1, i), data(uint64(100+i), size))
	}
	j.drainAll(0, 1, 2)
	want("overwritten", (ranks-1)*blocks, 2*blocks)
}

// TestPutByID: bytes that some rank has get a name without being sent: here by one more name,
// elsewhere by a copy, which is written by nobody.
func TestPutByID(t *testing.T) {
	j := sharingJob(t, 3, 8<<20)
	p := data(1, 20<<10)
	id := idOf(p).String()
	put := func(rank int, key, id string) error {
		res, err := PutByID(t.Context(), j.ranks[rank].Store, ns(key), id)
		if err == nil && (res.ID != idOf(p) || !res.Duplicate) {
			t.Errorf("%q: %+v", key, res)
		}
		return err
	}
	if err := put(1, "early", id); !errors.Is(err, ErrMiss) {
		t.Errorf("nobody has it: %v", err)
	}
	j.ranks[0].putKey(t, "a", p)
	if err := put(0, "here", id); err != nil {
		t.Error(err)
	}
	j.drainAll(0)
	if err := put(1, "there", id); err != nil {
		t.Error(err)
	}
	if tier := j.ranks[1].wantAt(t, "there", p); tier != "shm" {
		t.Errorf("a block that was put comes from %s", tier)
	}
	j.drainAll(1)
	if n, _ := j.durable(1); n != 0 {
		t.Errorf("%d blocks were written a second time", n)
	}
	for _, bad := range []string{"", "a", id[1:]} {
		if err := put(1, "bad", bad); !errors.Is(err, ErrBadEntry) {
			t.Errorf("id %q: %v", bad, err)
		}
	}
	if _, err := PutByID(t.Context(), j.ranks[1].Store, Entry{Namespace: directory.Contents, Key: id}, id); !errors.Is(err, ErrBadEntry) {
		t.Errorf("an id is given a name: %v", err)
	}
	e := ns("a")
	e.When = IfAbsent
	if _, err := PutByID(t.Context(), j.ranks[2].Store, e, id); !errors.Is(err, ErrCondition) {
		t.Errorf("a name that another rank has: %v", err)
	}
	for _, r := range j.ranks {
		r.wantRefs(t, "ns", "there", 3)
	}
	j.die(1)
	for _, i := range []int{0, 2} {
		j.ranks[i].wantAt(t, "there", p)
	}
}
