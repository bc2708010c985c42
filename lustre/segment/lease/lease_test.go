package lease

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// nodes is a directory shared by runs whose processes look like living ones, with
// one clock for all.
type nodes struct {
	dir string
	now time.Time
}

// run is a run of rank 3 and what it heard of its loss.
type run struct {
	*Lease
	lost int
}

func (n *nodes) run(number uint64) *run {
	p := Self()
	p.Boot[0] ^= 0xff // of another node
	r := &run{}
	r.Lease = New(Options{
		FS: vfs.OS{}, Dir: n.dir, Rank: 3, Incarnation: number, Process: p, Now: func() time.Time { return n.now },
		Begin: func() (func(), bool) { return func() {}, true },
		Lost:  func() { r.lost++ },
	})
	return r
}

func (r *run) own(t *testing.T) string {
	t.Helper()
	dir, _, err := r.OwnDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return dir
}

// owns looks at the directory of a run, as recovery does.
func (r *run) owns(t *testing.T, number uint64) bool {
	t.Helper()
	one := tiers.Part{Rank: 3, Incarnation: number}
	names, err := os.ReadDir(filepath.Join(r.o.Dir, format.Dir(one)))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, n := range names {
		list = append(list, n.Name())
	}
	own, _, err := r.Owns(one, list, &Round{})
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// TestTakeOver: a run that renews its token keeps its directory; one that is silent
// loses it, and finds out before it relies on it again.
func TestTakeOver(t *testing.T) {
	n := &nodes{dir: t.TempDir(), now: time.Unix(1800000000, 0)}
	first, second := n.run(1), n.run(2)
	dir := first.own(t)
	second.own(t)
	if err := os.WriteFile(filepath.Join(dir, "segment"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if second.owns(t, 1) {
			t.Fatal("it was taken over from one that lives")
		}
		n.now = n.now.Add(SilentFor / 2)
		first.Beat()
	}
	second.owns(t, 1)
	n.now = n.now.Add(SilentFor)
	if first.Trusted(n.now) {
		t.Error("it is trusted without a renewal")
	}
	if !second.owns(t, 1) {
		t.Fatal("it was not taken over")
	}
	if err := first.VerifyFor(t.Context(), 1); err == nil || first.lost != 1 {
		t.Errorf("the first run relies on what it lost: %v, told %d times", err, first.lost)
	}
	if err := first.Verify(t.Context()); err != nil {
		t.Errorf("it has no directory anew: %v", err)
	}
	if again := first.own(t); again == dir {
		t.Error("it writes to the directory that it lost")
	}
}

// TestRetire: of a run that ended in good order nothing is waited for, and one that
// was never used leaves nothing.
func TestRetire(t *testing.T) {
	n := &nodes{dir: t.TempDir(), now: time.Unix(1800000000, 0)}
	used, unused, next := n.run(1), n.run(2), n.run(3)
	dir := used.own(t)
	if err := os.WriteFile(filepath.Join(dir, "segment"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := unused.own(t)
	next.own(t)
	used.Retire(true)
	unused.Retire(false)
	if _, err := os.Stat(empty); !os.IsNotExist(err) {
		t.Errorf("the directory of a run that wrote nothing: %v", err)
	}
	if !next.owns(t, 1) {
		t.Error("a closed run's directory was not taken over")
	}
}

// TestSuccessor: a run that follows another one in its process, which could not close in good order, owns what that had at once, and one that
// only runs in the same process does not.
func TestSuccessor(t *testing.T) {
	for _, succeeds := range []bool{false, true} {
		n := &nodes{dir: t.TempDir(), now: time.Unix(1_800_000_000, 0)}
		before := n.run(10)
		if err := os.WriteFile(filepath.Join(before.own(t), "agg_rank003_000000.bin"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		after := n.run(20)
		after.o.Succeeds = succeeds
		after.own(t)
		if owns := after.owns(t, 10); owns != succeeds {
			t.Errorf("succeeds %v: owns what the run before left: %v", succeeds, owns)
		}
		if !after.owns(t, 20) {
			t.Error("it does not own what is its own")
		}
	}
}
