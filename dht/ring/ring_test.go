package ring

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cascadekv/dht/fabric"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
)

func ranks(n int) []fabric.Rank {
	list := make([]fabric.Rank, n)
	for i := range list {
		list[i] = fabric.Rank(i)
	}
	return list
}

// first is the ring of ranks(n), built once for all tests but parallel ones.
func first(t *testing.T, n, replicas int) *Ring {
	t.Helper()
	name := [2]int{n, replicas}
	r, ok := built[name]
	if !ok {
		r = build(t, ranks(n), replicas)
		built[name] = r
	}
	return r
}

var built = map[[2]int]*Ring{}

func build(t *testing.T, list []fabric.Rank, replicas int) *Ring {
	t.Helper()
	r, err := New(list, replicas)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fingerprint is a hash of every home of every partition.
func fingerprint(r *Ring) uint64 {
	var text []byte
	for p := range Partitions {
		for _, rank := range r.Homes(p) {
			text = binary.LittleEndian.AppendUint32(text, uint32(rank))
		}
	}
	return xxhash.Sum64(text)
}

// TestGolden pins the placement of Version 1. Whoever changes these numbers
// raises Version.
func TestGolden(t *testing.T) {
	golden := map[string]string{
		"1024 of 2": "fd0e6d7830227d40",
		"16 of 3":   "5d9c8caa9b48e7af",
		"256 of 2":  "69f448b61066e94c",
		"hash":      "86ca650bfa85904b",
		"digest":    "9bf95cacd4ac41b2",
	}
	if Version != 1 || Partitions != 262144 || Load != 1.10 {
		t.Fatalf("version %d: %d partitions, load %v", Version, Partitions, Load)
	}
	wide := first(t, 256, 2)
	for name, got := range map[string]uint64{
		"1024 of 2": fingerprint(first(t, 1024, 2)),
		"16 of 3":   fingerprint(first(t, 16, 3)),
		"256 of 2":  fingerprint(wide),
		"hash":      Hash("model", "key"),
		"digest":    wide.Digest(),
	} {
		if text := fmt.Sprintf("%016x", got); text != golden[name] {
			t.Errorf("%s: %s, golden %s", name, text, golden[name])
		}
	}
}

// TestProcesses builds one ring in other processes, from shuffled ranks.
func TestProcesses(t *testing.T) {
	t.Parallel()
	const n = 16
	if seed := os.Getenv("RING_TEST_SEED"); seed != "" {
		number, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		list := ranks(n)
		rand.New(rand.NewPCG(number, 0)).Shuffle(n, func(i, k int) { list[i], list[k] = list[k], list[i] })
		r := build(t, list, 3)
		fmt.Printf("ring %016x %016x\n", r.Digest(), fingerprint(r))
		return
	}
	r := build(t, ranks(n), 3)
	want := fmt.Sprintf("ring %016x %016x", r.Digest(), fingerprint(r))
	for seed := range 1 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestProcesses$")
		child.Env = append(os.Environ(), fmt.Sprint("RING_TEST_SEED=", seed+1))
		out, err := child.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !strings.Contains(string(out), want) {
			t.Errorf("another process has %s, this one %s", out, want)
		}
	}
}

// TestLimits checks how even the placement is and how little moves, against
// the limits of docs/protocol.md.
func TestLimits(t *testing.T) {
	for _, n := range []int{4, 16, 256, 1024} {
		r := first(t, n, 2)
		owned, kept := 0, 0
		for _, s := range r.Shares() {
			owned, kept = max(owned, s.Partitions), max(kept, s.Homes)
		}
		mean := Partitions / float64(n)
		t.Logf("%d ranks: owner max/mean %.3f, homes %.3f", n, float64(owned)/mean, float64(kept)/mean/2)
		if float64(owned) > 1.12*mean {
			t.Errorf("%d ranks: one owns %d partitions, the mean is %.0f", n, owned, mean)
		}
		if float64(kept) > 1.12*2*mean {
			t.Errorf("%d ranks: one is home of %d partitions, the mean is %.0f", n, kept, 2*mean)
		}
		joined, err := r.With(fabric.Rank(n + 3))
		if err != nil {
			t.Fatal(err)
		}
		little(t, fmt.Sprint(n, " ranks, one joins"), r, joined)
		left, err := r.Without(fabric.Rank(n / 2))
		if err != nil {
			t.Fatal(err)
		}
		little(t, fmt.Sprint(n, " ranks, one leaves"), r, left)
	}
}

// little checks that at most 1.5/N of owners and of entries move.
func little(t *testing.T, what string, from, to *Ring) {
	t.Helper()
	owners, entries := 0, 0
	for _, c := range movedBetween(from, to) {
		if c.Old[0] != c.New[0] {
			owners++
		}
		entries += len(c.gained())
	}
	part := float64(Partitions) / float64(from.Len())
	t.Logf("%s: moved %.2f/N owners, %.2f/N entries", what, float64(owners)/part, float64(entries)/part/2)
	if owners == 0 || float64(owners) > 1.5*part {
		t.Errorf("%s: %d owners moved, a rank has %.0f", what, owners, part)
	}
	if entries == 0 || float64(entries) > 1.5*part*2 {
		t.Errorf("%s: %d entries moved, a rank has %.0f", what, entries, 2*part)
	}
}

// TestHistory checks that only the set of ranks counts, whatever came before.
func TestHistory(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	r := build(t, ranks(3), 3)
	for range 2 {
		list := r.Ranks()
		before := fingerprint(r)
		rank := fabric.Rank(rng.IntN(5))
		there := slices.Contains(list, rank)
		if there && len(list) == 1 {
			continue
		}
		change, undo := r.With, (*Ring).Without
		if there {
			change, undo = r.Without, (*Ring).With
		}
		next, err := change(rank)
		if err != nil {
			t.Fatal(err)
		}
		back, err := undo(next, rank)
		if err != nil {
			t.Fatal(err)
		}
		if fingerprint(back) != before || back.Digest() != r.Digest() || next.Digest() == r.Digest() {
			t.Fatalf("%v and back: %v changed", rank, list)
		}
		if back.Epoch() != r.Epoch()+2 {
			t.Fatalf("epoch %d, two changes after %d", back.Epoch(), r.Epoch())
		}
		r = next
	}
	if fresh := build(t, r.Ranks(), 3); fingerprint(fresh) != fingerprint(r) || fresh.Digest() != r.Digest() {
		t.Fatalf("a fresh ring of %v is another", r.Ranks())
	}
	jump, err := r.Next([]fabric.Rank{40, 2, 7})
	if err != nil {
		t.Fatal(err)
	}
	if fingerprint(jump) != fingerprint(build(t, []fabric.Rank{2, 7, 40}, 3)) {
		t.Error("a change of several ranks places differently from a fresh ring")
	}
}

// TestHomes checks the homes of every seventh partition against the rule, written down anew.
func TestHomes(t *testing.T) {
	for n := 2; n <= 4; n += 2 {
		r := first(t, n, 3)
		for p := 0; p < Partitions; p += 7 {
			homes := r.Homes(p)
			if len(homes) != min(3, n) {
				t.Fatalf("%d ranks: %d homes", n, len(homes))
			}
			sorted := r.Ranks()
			slices.SortFunc(sorted, func(a, b fabric.Rank) int {
				if mix(partitionSeed(p)^rankSeed(a)) > mix(partitionSeed(p)^rankSeed(b)) {
					return -1
				}
				return 1
			})
			// So few ranks draw so evenly that none is ever full.
			if !slices.Equal(homes, sorted[:len(homes)]) {
				t.Fatalf("partition %d of %d ranks: %v, by score %v", p, n, homes, sorted)
			}
		}
	}
}

// TestAllFit: what is left out where all have room changes no home, and is not left out where
// one has none.
func TestAllFit(t *testing.T) {
	for n, fit := range map[int]bool{1: true, 3: true, 256: true, 1024: false} {
		r := first(t, n, 2)
		placed := *r
		if err := placed.place(); err != nil {
			t.Fatal(err)
		}
		if r.fits() != fit || fingerprint(&placed) != fingerprint(r) {
			t.Errorf("%d ranks: all fit: %v; placed in turn they are the same: %v", n, r.fits(), fingerprint(&placed) == fingerprint(r))
		}
	}
	for _, n := range []int{2, 7} { // the bound is what consistent has
		r, members := first(t, n, 1), make([]consistent.Member, n)
		for i := range members {
			members[i] = newMember(fabric.Rank(i))
		}
		table := consistent.New(members, consistent.Config{Hasher: placer{r}, PartitionCount: Partitions, ReplicationFactor: 1, Load: Load})
		if table.AverageLoad() != float64(r.bound) {
			t.Errorf("%d ranks: consistent's bound is %v, ours %d", n, table.AverageLoad(), r.bound)
		}
	}
}

// TestDisagreement: what two ranks must agree on changes the digest.
func TestDisagreement(t *testing.T) {
	seen := map[uint64]string{}
	for _, replicas := range []int{1, 2} {
		for _, list := range [][]fabric.Rank{{0}, {1}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}} {
			sum := digest(list, replicas)
			if other, ok := seen[sum]; ok {
				t.Errorf("%v x %d has the digest of %s", list, replicas, other)
			}
			seen[sum] = fmt.Sprint(list, " x ", replicas)
		}
	}
}

func TestRefused(t *testing.T) {
	two := first(t, 2, 3)
	_, joined := two.With(1)
	_, left := two.Without(2)
	one, err := two.Without(0)
	if err != nil {
		t.Fatal(err)
	}
	_, last := one.Without(1)
	_, empty := New(nil, 1)
	_, large := New([]fabric.Rank{MaxRanks}, 1)
	for what, err := range map[string]error{"twice": joined, "absent": left, "last": last, "empty": empty, "large": large} {
		if !errors.Is(err, ErrRanks) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, replicas := range []int{-1, 0, MaxReplicas + 1} {
		if _, err := New(ranks(2), replicas); !errors.Is(err, ErrReplicas) {
			t.Errorf("%d replicas: %v", replicas, err)
		}
	}
}

func TestPartition(t *testing.T) {
	if Hash("ab", "c") == Hash("a", "bc") || Hash("", "abc") == Hash("abc", "") {
		t.Error("the border between namespace and key is lost")
	}
	namespace, key := strings.Repeat("n", 300), strings.Repeat("k", 1000)
	if n := testing.AllocsPerRun(100, func() { Partition(namespace, key) }); n != 0 {
		t.Errorf("Partition allocates %v times", n)
	}
	// Keys fall evenly: the fullest of 64 parts of the partitions is within 5
	// standard deviations.
	var counts [64]int
	const keys = 64 * 400
	for i := range keys {
		counts[Partition("model", fmt.Sprint("key", i))*64/Partitions]++
	}
	if most := slices.Max(counts[:]); most > 500 {
		t.Errorf("one 64th has %d of %d keys", most, keys)
	}
}

func TestConcurrentUse(t *testing.T) {
	r := first(t, 4, 2)
	if n := testing.AllocsPerRun(100, func() { r.Homes(17) }); n != 0 {
		t.Errorf("Homes allocates %v times", n)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for p := range 1000 {
				if len(r.Homes(p)) != 2 || !r.IsHome(r.Homes(p)[1], p) {
					t.Error("homes changed")
				}
			}
		})
	}
	next, err := r.With(8)
	all.Wait()
	if err != nil || !next.Has(8) || r.Has(8) || r.Len() != 4 || next.Len() != 5 {
		t.Errorf("with a fifth: %v, %d and %d ranks", err, r.Len(), next.Len())
	}
}

// TestExplain follows the explanation of a key and of one whose first choice
// is full.
func TestExplain(t *testing.T) {
	r := first(t, 1024, 2)
	e := r.Explain("model", "key")
	if e.Partition != r.Partition("model", "key") || len(e.Homes) != 2 || e.Homes[0].Role != "owner" || e.Homes[1].Role != "replica" {
		t.Errorf("explained as %+v", e)
	}
	if text, err := json.Marshal(e); err != nil || !strings.Contains(string(text), `"role":"owner"`) {
		t.Errorf("as JSON %s, %v", text, err)
	}
	for i := 0; ; i++ {
		if i == 20000 {
			t.Fatal("no rank of 1024 is full")
		}
		key := fmt.Sprint(i)
		p := r.Partition("", key)
		if r.Homes(p)[0] == r.chosen(p)[0] {
			continue
		}
		e := r.Explain("", key)
		if e.Homes[0].Rank != r.Homes(p)[0] || !strings.Contains(e.Homes[0].Why, "next rank on the circle") {
			t.Errorf("explained as %+v", e)
		}
		want := "score 1 of 1024 ranks"
		if e.Homes[1].Rank != r.chosen(p)[0] {
			want = "a rank with a better score is home of enough partitions; the next rank on the circle with room"
		}
		if e.Homes[1].Why != want {
			t.Errorf("the replica is explained as %+v", e)
		}
		return
	}
}

func TestMoved(t *testing.T) {
	t.Parallel()
	r := build(t, ranks(4), 2)
	next, err := r.Without(2)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, c := range movedBetween(r, next) {
		seen++
		if !slices.Equal(c.lost(), []fabric.Rank{2}) || len(c.gained()) != 1 || slices.Contains(c.New, 2) {
			t.Fatalf("%+v: lost %v, gained %v", c, c.lost(), c.gained())
		}
	}
	for _, s := range r.Shares() {
		if s.Rank == 2 && s.Homes != seen {
			t.Errorf("rank 2 had %d partitions, %d moved", s.Homes, seen)
		}
	}
	if len(movedBetween(r, r)) != 0 {
		t.Error("something moved from a ring to itself")
	}
}

// change is a partition whose homes differ between two rings, in who they are
// or in their order. Its slices belong to the rings: do not change them.
type change struct {
	Partition int
	Old, New  []fabric.Rank // homes, the owner first
}

// gained returns the homes that need the partition's entries: those it did not
// have before.
func (c change) gained() []fabric.Rank { return differing(c.New, c.Old) }

// lost returns the homes that may forget the partition's entries.
func (c change) lost() []fabric.Rank { return differing(c.Old, c.New) }

func differing(a, b []fabric.Rank) []fabric.Rank {
	var only []fabric.Rank
	for _, rank := range a {
		if !slices.Contains(b, rank) {
			only = append(only, rank)
		}
	}
	return only
}

// movedBetween returns what changed from one ring to another, by partition. A rank
// that restarted under its old number changes nothing here, although it has
// forgotten its entries: membership reports it.
func movedBetween(from, to *Ring) []change {
	var moved []change
	for p := range Partitions {
		if a, b := from.Homes(p), to.Homes(p); !slices.Equal(a, b) {
			moved = append(moved, change{p, a, b})
		}
	}
	return moved
}
