package recovery

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

const size = 1000 // of the blocks of these tests

// named is a name with a sequence number.
func named(key string, seq uint64) block.Name {
	n := parttest.Name(key)
	n.Seq = seq
	return n
}

// found is block seed with names, as a tier finds it.
func found(seed uint64, all ...block.Name) tiers.Entry {
	p := parttest.Data(seed, size)
	return tiers.Entry{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: size, CRC: block.CRC(p)}, Names: all}
}

// id is that of block seed.
func id(seed uint64) block.ID { return found(seed).Info.ID }

// left is what earlier incarnations left in a tier.
type left []tiers.Entry

// recover stores the blocks and calls fn, as a tier does.
func (l left) recover(t tiers.Tier, fn func(tiers.Entry) error) error {
	for _, e := range l {
		if !e.Info.ID.IsZero() {
			if err := t.Put(context.Background(), tiers.Item{Info: e.Info, Names: e.Names, Data: make([]byte, e.Info.Size)}); err != nil {
				return err
			}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// memory is a memory tier that records what is withdrawn from it.
type memory struct {
	tiers.Memory
	left
	unlinks []block.Name
	failing error
}

func (m *memory) Recover(fn func(tiers.Entry) error) error {
	return errors.Join(m.failing, m.recover(m.Memory, fn))
}

func (m *memory) Unlink(id block.ID, n block.Name) error {
	m.unlinks = append(m.unlinks, n)
	return m.Memory.Unlink(id, n)
}

type files struct {
	*parttest.Files
	left
	failing error
}

func (f *files) Recover(fn func(tiers.Entry) error) error {
	return errors.Join(f.failing, f.recover(f.Files, fn))
}

// rank is one that has not looked at its tiers yet.
type rank struct {
	*parttest.Rank
	memory *memory
	files  *files
}

// newRank returns a rank whose memory and cold tier hold something.
func newRank(t *testing.T, inMemory, below left, change ...func(*residency.Options)) *rank {
	r := &rank{memory: &memory{Memory: parttest.Host(t), left: inMemory}, files: &files{Files: parttest.NewFiles(t), left: below}}
	use := func(o *residency.Options) { o.Memory, o.Cold = []tiers.Memory{r.memory}, r.files }
	r.Rank = parttest.New(t, append([]func(*residency.Options){use}, change...)...)
	return r
}

// look recovers, and checks the state.
func (r *rank) look(t *testing.T) {
	t.Helper()
	if err := New(r.State).Recover(func() {}); err != nil {
		t.Fatal(err)
	}
	parttest.Check(t, r.State)
}

// is checks which block a name stands for; 0 is none.
func (r *rank) is(t *testing.T, key string, seed uint64) {
	t.Helper()
	b := r.Block(key)
	if (b == nil) != (seed == 0) || b != nil && b.Info.ID != id(seed) {
		t.Errorf("%q stands for %v, want block %d", key, b, seed)
	}
}

// Of several records of a name, in one tier or in several, the youngest is the truth:
// the others are withdrawn where they lie, and a block that no name is left of goes.
func TestTheYoungestRecordWins(t *testing.T) {
	r := newRank(t,
		left{found(1, named("a", 5), named("b", 9), named("c", 5)), found(2, named("twice", 4)), found(3, named("twice", 7))},
		left{found(4, named("a", 9)), found(5, named("b", 5)), found(1, named("c", 5))})
	r.look(t)
	r.is(t, "a", 4)
	r.is(t, "b", 1)
	r.is(t, "c", 1)
	r.is(t, "twice", 3)
	for _, want := range []block.Name{named("a", 5), named("twice", 4)} {
		if !slices.ContainsFunc(r.memory.unlinks, func(n block.Name) bool { return n.Key == want.Key && n.Seq == want.Seq }) {
			t.Errorf("%q is not withdrawn as of %d: %v", want.Key, want.Seq, r.memory.unlinks)
		}
	}
	_, unlinks := r.files.Linked() // "a" of block 1 too, which is there as well
	if len(unlinks) != 2 || !slices.ContainsFunc(unlinks, func(n block.Name) bool { return n.Key == "b" && n.Seq == 5 }) {
		t.Errorf("withdrawn below: %v", unlinks)
	}
	if r.Mu.Blocks[id(2)] != nil || r.files.Holds(id(5)) || r.memory.Usage().Blocks != 2 {
		t.Errorf("%d blocks are in memory; block 5 is below: %v", r.memory.Usage().Blocks, r.files.Holds(id(5)))
	}
	if b := r.Block("c"); !b.Cold || !b.In(0) || b.CountedDirty || !r.Block("twice").CountedDirty {
		t.Error("where the blocks are is wrong")
	}
}

// A name that was withdrawn later than it was recorded is gone, one that was recorded
// later is there.
func TestWithdrawals(t *testing.T) {
	withdrawn := tiers.Entry{Dropped: []block.Name{named("gone", 9), named("again", 5)}}
	for name, below := range map[string]left{"before": {withdrawn}, "after": nil} {
		t.Run(name, func(t *testing.T) {
			inMemory := left{found(1, named("gone", 5)), found(2, named("again", 9))}
			if below == nil {
				inMemory = append(inMemory, withdrawn)
			}
			r := newRank(t, inMemory, below)
			r.look(t)
			r.is(t, "gone", 0)
			r.is(t, "again", 2)
		})
	}
}

// Of two tiers that disagree on what an id holds the first is believed.
func TestDisagreeingTiers(t *testing.T) {
	other := found(1, named("a", 9))
	other.Info.CRC++
	r := newRank(t, left{other}, left{found(1, named("a", 5))})
	if err := New(r.State).Recover(func() {}); err != nil {
		t.Fatal(err)
	}
	r.is(t, "a", 1)
	if b := r.Block("a"); b.Info != found(1).Info || b.InAny() || !r.Log.Has("tiers disagree") {
		t.Errorf("%+v is believed", b.Info)
	}
}

// Chains are whole again, and leave from their ends; what is put next is younger than
// all that was found.
func TestChainsAreWhole(t *testing.T) {
	child := named("child", 1<<62)
	child.Parent = "parent"
	r := newRank(t, left{found(2, child), found(1, named("parent", 5))}, nil)
	r.look(t)
	if n := r.Mu.Names.Get("ns", "child"); n.Parent() != r.Mu.Names.Get("ns", "parent") {
		t.Error("the child has no parent")
	}
	if b := r.Last().Next(); b != r.Block("child") {
		t.Error("the parent leaves first")
	}
	if b := r.Put(parttest.Name("new"), parttest.Data(3, size)); b.Names()[0].Seq() <= 1<<62 {
		t.Error("a new name is older than what was found")
	}
}

// Blocks whose ids were not computed yet wait for that, and no new block gets the
// number of one of them.
func TestProvisionalIDs(t *testing.T) {
	e := found(1, named("a", 5))
	e.Info.ID = block.Provisional(41)
	r := newRank(t, left{e}, nil)
	r.look(t)
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if b := r.Pending.Pop(); b == nil || b.Info != e.Info {
		t.Errorf("%v waits for its id", b)
	}
	if got := block.ProvisionalNumber(r.ProvisionalLocked()); got != 42 {
		t.Errorf("the next number is %d", got)
	}
}

// What lies in the cold tier stands in the order of its names, as old; what lies in
// another process's file does not.
func TestWhatIsBelowIsOld(t *testing.T) {
	foreign := found(3, named("foreign", 3))
	foreign.OtherOwner = true
	r := newRank(t, nil, left{found(2, named("second", 9)), found(1, named("first", 5)), foreign},
		func(o *residency.Options) { o.Limits.ColdBytes = 1 << 20 })
	r.look(t)
	if r.Cold.Old != 2*size || r.Cold.Next() != r.Block("first") {
		t.Errorf("%d bytes are old", r.Cold.Old)
	}
	if b := r.Block("foreign"); !b.Below.OtherOwner || b.Below.Ranked {
		t.Errorf("foreign: %+v", b.Below)
	}
}

// Blocks without a name are there when claims are taken, and go after that.
func TestBlocksWithoutANameGo(t *testing.T) {
	r := newRank(t, left{found(1, named("a", 5)), found(2)}, left{found(3)})
	claimed := 0
	if err := New(r.State).Recover(func() {
		claimed++
		if len(r.Mu.Blocks) != 3 || r.Mu.Names.Len() != 1 {
			t.Errorf("%d blocks and %d names while claims are taken", len(r.Mu.Blocks), r.Mu.Names.Len())
		}
	}); err != nil {
		t.Fatal(err)
	}
	if claimed != 1 || len(r.Mu.Blocks) != 1 || r.memory.Usage().Blocks != 1 || r.files.Usage().Blocks != 0 {
		t.Errorf("%d blocks stay", len(r.Mu.Blocks))
	}
	if st := r.Count.Stats.Recovered; st != (residency.RecoverStats{Blocks: 1, Names: 1, Bytes: size}) {
		t.Errorf("%+v", st)
	}
	parttest.Check(t, r.State)
}

// Of blocks without a name those stay below for which names may stand that are recorded elsewhere: the state does
// not know them, and they are judged later.
func TestWantedBlocksStayBelow(t *testing.T) {
	named, wanted, copied := found(3, named("a", 5)), found(4), found(5)
	named.Wanted, wanted.Wanted, copied.Wanted = true, true, true
	r := newRank(t, left{found(5)}, left{named, wanted, copied, found(6)}, func(o *residency.Options) { o.Limits.ColdBytes = 1 << 20 })
	r.look(t)
	r.is(t, "a", 3)
	if len(r.Mu.Blocks) != 1 || r.memory.Usage().Blocks != 0 {
		t.Errorf("the state knows %d blocks, and %d are in memory", len(r.Mu.Blocks), r.memory.Usage().Blocks)
	}
	if !r.files.Holds(id(4)) || !r.files.Holds(id(5)) || r.files.Holds(id(6)) {
		t.Error("not the wanted ones alone stay")
	}
	if got := r.Cold.Wanted(); len(got) != 2 || !slices.Contains(got, id(4)) || !slices.Contains(got, id(5)) {
		t.Errorf("%v are to be judged", got)
	}
}

// A tier that cannot be looked at is an error that names it.
func TestTiersThatFail(t *testing.T) {
	failed := errors.New("no luck")
	r := newRank(t, nil, nil)
	r.memory.failing = failed
	if err := New(r.State).Recover(func() {}); !errors.Is(err, failed) || !strings.Contains(err.Error(), "recover host") {
		t.Errorf("%v", err)
	}
	r = newRank(t, nil, nil)
	r.files.failing = failed
	if err := New(r.State).Recover(func() { t.Error("claims are taken") }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// Of more names than there may be the youngest are taken in, each with all that comes
// before it in its chain.
func TestTheBoundOnNamesIsKept(t *testing.T) {
	const chains, length = 50, 20
	var all left
	seq := uint64(0)
	add := func(key, parent string) {
		seq++
		n := named(key, seq)
		n.Parent = parent
		all = append(all, found(seq, n))
	}
	for c := range chains {
		parent := ""
		for i := range length {
			key := fmt.Sprintf("%02d.%02d", c, i)
			add(key, parent)
			parent = key
		}
	}
	add("late", "00.00") // an old head whose chain goes on at last
	r := newRank(t, all, nil, func(o *residency.Options) { o.Limits.NameBytes = 500 * names.Cost("00.00", "00.00") })
	r.look(t)
	n := r.Mu.Names.Len()
	if n < 400 || n > 550 || r.Count.Stats.Forgotten != uint64(len(all)-n) || !r.Log.Has("raise names_bytes") {
		t.Errorf("%d names, %d forgotten", n, r.Count.Stats.Forgotten)
	}
	if got := r.Has("late", "00.00", "00.01", "49.19", "49.00", "03.00"); !slices.Equal(got, []string{"late", "00.00", "49.19", "49.00"}) {
		t.Errorf("%v are there", got)
	}
	parttest.NoHoles(t, r.State)
	if len(r.Mu.Blocks) != n || r.memory.Usage().Blocks != n {
		t.Errorf("%d blocks of %d names", len(r.Mu.Blocks), n)
	}
}

// A rank finds what the one before left in its arena, and counts the names of each
// namespace.
func TestAnArenaIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	arena := func() func(*residency.Options) {
		return func(o *residency.Options) { o.Memory = []tiers.Memory{parttest.Arena(t, path)} }
	}
	r := parttest.New(t, arena())
	other := parttest.Name("a")
	other.Namespace = "other"
	r.Put(parttest.Name("a"), parttest.Data(1, 100))
	r.Put(other, parttest.Data(2, 100))
	r.Put(parttest.Name("b"), parttest.Data(3, 100))
	r.PutPending(parttest.Name("pending"), parttest.Data(4, 100))
	r.Delete("b")
	if err := r.Last().Memory.Close(); err != nil {
		t.Fatal(err)
	}
	r = parttest.New(t, arena())
	if err := New(r.State).Recover(func() {}); err != nil {
		t.Fatal(err)
	}
	r.Put(parttest.Name("c"), parttest.Data(5, 100))
	if n, o := r.Mu.Names.Space("ns"), r.Mu.Names.Space("other"); n.Recovered != 2 || o.Recovered != 1 {
		t.Errorf("%d and %d names are recovered", n.Recovered, o.Recovered)
	}
	if got := r.Has("a", "b", "pending", "c"); !slices.Equal(got, []string{"a", "pending", "c"}) {
		t.Errorf("%v are there", got)
	}
	v := r.Pin("a")
	defer v.Release()
	if !slices.Equal(v.Bytes(), parttest.Data(1, 100)) {
		t.Error("other bytes")
	}
	parttest.Check(t, r.State)
}
