package cascade

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/lustre"
	dirlease "cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// world is a rank whose process can be killed: what it leaves is copied and opened anew.
type world struct {
	t                 *testing.T
	campaign          string // the name of it, for the index
	dir, local, arena string
	late              *atomic.Int64 // what the clock shows more, in nanoseconds
	r                 *rig
	budget            int64
	disk              *testdevice.Tier // below shm; nil: there is none
}

const modelBlock = 8000

// modelDisk is how many bytes a disk below shm has: some of what shm can not keep.
const modelDisk = 60 * modelBlock

func (w *world) now() time.Time { return time.Unix(1_800_000_000, 0).Add(time.Duration(w.late.Load())) }

func (w *world) open() {
	w.t.Helper()
	w.late.Add(int64(time.Hour))
	cold, err := lustre.Open(lustre.Options{Dir: w.dir, OwnOnly: true, Catalogued: true, SegmentBytes: 1 << 20, Process: dirlease.Killed()})
	if err != nil {
		w.t.Fatal(err)
	}
	err = cold.OpenCatalogue(lustre.IndexOptions{Dir: w.local, Campaign: w.campaign, CacheBytes: 4 << 20, MemTableBytes: 1 << 20, Now: w.now})
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := shm.Open(w.arena, 4<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := m.WaitReady(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	o := Options{SweepEvery: -1, Now: w.now, Log: slog.New(slog.DiscardHandler), Limits: Limits{RoomDeadline: patient}, Memory: []tiers.Memory{m}, Cold: cold, Capacity: 1 << 20}
	if w.disk != nil {
		w.disk = w.disk.Reopened()
		o.Memory, o.Capacity = append(o.Memory, disk{w.disk}), 1<<17
	}
	o.Limits.ColdBytes = w.budget
	s, err := Open(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.r = &rig{t: w.t, Store: s, opt: o}
}

// close ends in good order; the arena is kept or not.
func (w *world) close(keepArena bool) {
	w.t.Helper()
	checkInvariants(w.t, w.r.Store)
	if err := w.r.Close(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if !keepArena {
		_ = os.Remove(w.arena)
	}
}

// kill copies what is there and goes on with the copy.
func (w *world) kill(keepArena, keepIndex bool) {
	w.t.Helper()
	base := w.t.TempDir()
	old := *w
	w.dir, w.local, w.arena = filepath.Join(base, "dir"), filepath.Join(base, "index"), filepath.Join(base, "arena")
	image, err := os.ReadFile(old.arena)
	if err != nil {
		w.t.Fatal(err)
	}
	switch {
	case w.disk == nil:
	case keepArena:
		w.disk = w.disk.Reopened()
	default: // the node is another
		w.disk = testdevice.New(modelDisk)
	}
	for try := range 20 {
		_ = os.RemoveAll(w.dir)
		_ = os.RemoveAll(w.local)
		if err = os.CopyFS(w.dir, os.DirFS(old.dir)); err == nil && keepIndex {
			err = os.CopyFS(w.local, os.DirFS(old.local))
		}
		if err == nil {
			break
		}
		if try == 19 {
			w.t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if keepArena {
		if err := os.WriteFile(w.arena, image, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	_ = old.r.Close(context.Background())
	_ = os.RemoveAll(old.dir)
	_ = os.RemoveAll(old.local)
	w.open()
}

type value struct {
	there   bool
	content uint64
	expires time.Time
	parent  string // of a bound name
	named   bool   // what it stands for was in a file: until that has the name too, only the process knows of it
}

type spillModel struct {
	*world
	rng  *rand.Rand
	now_ map[string]value
	was  map[string][]value // since all was durable, the oldest first
	log  []string

	kills string // what is kept of a killed rank: process, node (its files), index (all but that), or all of these in turn; empty: none is killed
}

func (m *spillModel) fail(format string, args ...any) {
	m.t.Helper()
	what := fmt.Sprintf(format, args...)
	key := ""
	for _, w := range strings.FieldsFunc(what, func(r rune) bool { return !strings.ContainsRune("kb0123456789", r) }) {
		if len(w) > 1 && (w[0] == 'k' || w[0] == 'b') {
			key = w[1:]
			break
		}
	}
	var short []string
	for _, l := range m.log {
		about := strings.HasSuffix(l, key+";") || strings.Contains(l, "k"+key+"=") || strings.Contains(l, "b"+key+"=")
		if other := strings.HasPrefix(l, "put") || strings.HasPrefix(l, "get") || strings.HasPrefix(l, "expire") || strings.HasPrefix(l, "lease") || strings.HasPrefix(l, "delete"); about || !other {
			short = append(short, l)
		}
	}
	if key != "" {
		m.r.state.Mu.Lock()
		if n := m.r.state.Mu.Names.Get("ns", "k"+key); n != nil && n.Block() != nil {
			b := n.Block().Owner.(*residency.Block)
			what += fmt.Sprintf(" HERE cold %v from %v mem %v seq %d put %d id %v", b.Cold, b.From, b.InAny(), n.Seq(), n.Put(), b.Info.ID)
		}
		m.r.state.Mu.Unlock()
		f := m.r.state.Cold.Files.Catalogue().Peek("ns", []string{"k" + key})[0]
		what += m.records("k" + key)
		what += fmt.Sprintf(" CAT %+v spilled %v", f, m.r.state.Cold.Files.Spilled())
	}
	m.t.Fatalf("%s (ends %v, now %v)\n%s", what, m.now_["k"+key].expires.Format(time.TimeOnly), m.now().Format(time.TimeOnly), strings.Join(short[max(0, len(short)-50):], " "))
}

func (m *spillModel) set(k string, v value) {
	m.was[k] = append(m.was[k], m.now_[k])
	m.now_[k] = v
}

func (m *spillModel) alive(v value) bool {
	return v.there && (v.expires.IsZero() || m.now().Before(v.expires))
}

func (m *spillModel) visible(k string) bool {
	v := m.now_[k]
	return m.alive(v) && (v.parent == "" || m.visible(v.parent))
}

// read returns what the store has: -1 for nothing.
func (m *spillModel) read(k string) int64 {
	m.t.Helper()
	v, err := m.r.Get(context.Background(), "ns", k)
	if err != nil {
		return -1
	}
	defer v.Release()
	id := block.Sum(block.Bits128, v.Bytes())
	for c := range uint64(modelContents) {
		if ids[c] == id {
			return int64(c)
		}
	}
	return -2
}

const modelContents = 200

var ids = func() (all [modelContents]block.ID) {
	for c := range all {
		all[c] = block.Sum(block.Bits128, data(uint64(c), modelBlock))
	}
	return all
}()

func (m *spillModel) check(k string) {
	m.t.Helper()
	want := int64(-1)
	if m.visible(k) {
		want = int64(m.now_[k].content)
	}
	if is := m.r.Contains(context.Background(), "ns", k); is != (want >= 0) {
		m.fail("%s is there: %v, want %d", k, is, want)
	}
	if got := m.read(k); got != want {
		m.fail("%s is %d, want %d", k, got, want)
	}
}

// settle makes all durable.
func (m *spillModel) settle() {
	m.t.Helper()
	ctx := context.Background()
	if err := m.r.others.FlushTombstones(ctx); err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.r.Drain(ctx); err != nil {
		m.t.Fatal(err)
	}
	if err := m.r.others.SyncInTurn(ctx); err != nil {
		m.t.Fatal(err)
	}
	clear(m.was)
}

// after a kill, what changed since settle may be as it was at any moment since.
func (m *spillModel) reconcile() {
	m.t.Helper()
	for pass := range 2 { // parents first
		for k, was := range m.was {
			if strings.HasPrefix(k, "b") != (pass == 1) {
				continue
			}
			got := m.read(k)
			all := append(append([]value{}, was...), m.now_[k])
			ok := false
			for i := len(all) - 1; i >= 0 && !ok; i-- {
				v := all[i]
				m.now_[k] = v
				want := int64(-1)
				if m.visible(k) {
					want = int64(v.content)
				}
				ok = want == got
			}
			if !ok && got < 0 && (m.kills != "process" && m.kills != "index" || all[len(all)-1].named) {
				ok = true // the new version was lost with memory, and the old one was withdrawn
				m.now_[k] = value{}
			}
			if !ok {
				m.fail("after a kill %s is %d, none of %v", k, got, all)
			}
			if got < 0 { // which of several reasons is not known: make it certain
				m.r.Delete(context.Background(), "ns", k)
				m.now_[k] = value{}
			} else if !m.now_[k].expires.IsZero() || len(all) > 1 {
				// its end may be another: make it certain
				m.r.Expire(context.Background(), "ns", k, m.now_[k].expires)
			}
		}
	}
	clear(m.was)
	m.settle()
}

func (m *spillModel) key() string { return fmt.Sprint("k", m.rng.IntN(150)) }

func (m *spillModel) step(bound bool) {
	ctx := context.Background()
	var what string
	switch op := m.rng.IntN(110); {
	case op < 40:
		k, content := m.key(), m.rng.Uint64N(modelContents)
		e := Entry{Namespace: "ns", Key: k, Prefix: m.rng.IntN(8) == 0}
		v := value{there: true, content: content}
		switch {
		case bound && m.rng.IntN(4) == 0:
			v.parent = k
			k = "b" + k[1:]
			e.Key, e.Parent, e.Bound = k, v.parent, true
		case m.rng.IntN(2) == 0:
			if parent := m.key(); parent != k {
				e.Parent = parent
			}
		}
		switch m.rng.IntN(8) {
		case 0:
			v.expires = m.now().Add(time.Duration(m.rng.IntN(120)) * time.Minute)
			e.Expires = v.expires
		case 1:
			e.When = IfAbsent
		case 2:
			e.When = IfPresent
		case 3:
			m.r.Sweep()
			e.KeepTTL = true
			if m.visible(k) {
				v.expires = m.now_[k].expires
			}
		}
		what = fmt.Sprintf("put %s=%d when %v keep %v ends %v;", k, content, e.When, e.KeepTTL, e.Expires.Format(time.TimeOnly))
		var err error
		if m.rng.IntN(2) == 0 {
			_, err = m.r.Put(ctx, e, data(content, modelBlock), nil)
		} else {
			err = m.r.stage(e, data(content, modelBlock))
		}
		refused := e.When == IfAbsent && m.visible(k) || e.When == IfPresent && !m.visible(k)
		if refused != (err != nil) {
			m.fail("%s: %v", what, err)
		}
		if !refused {
			m.r.state.Mu.Lock()
			b := residency.BlockOf(m.r.state.Mu.Names.Get("ns", k))
			v.named = !b.InAny()
			m.r.state.Mu.Unlock()
			m.set(k, v)
		}
	case op < 50:
		k := m.key()
		what = "delete " + k + ";"
		had := m.visible(k)
		if was := m.r.Delete(ctx, "ns", k); was != had {
			m.fail("delete of %s: %v", k, was)
		}
		if m.now_[k].there {
			m.set(k, value{})
		}
	case op < 55:
		k := m.key()
		v := m.now_[k]
		v.expires = m.now().Add(time.Duration(1+m.rng.IntN(120)) * time.Minute)
		if m.rng.IntN(3) == 0 {
			v.expires = time.Time{}
		}
		what = fmt.Sprintf("expire at %v %s;", v.expires.Format(time.TimeOnly), k)
		if is := m.r.Expire(ctx, "ns", k, v.expires); is != m.visible(k) {
			m.fail("%s %v", what, is)
		}
		if m.visible(k) {
			m.set(k, v)
		}
	case op < 60:
		what = "later;"
		m.late.Add(int64(m.rng.IntN(30)) * int64(time.Minute))
		if m.rng.IntN(2) == 0 {
			m.r.Sweep()
		}
	case op < 62:
		k := m.key()
		what = "lease " + k + ";"
		if is := m.r.Lease(ctx, "ns", k, "me", time.Minute); is != m.visible(k) {
			m.fail("%s %v", what, is)
		}
	case op < 75:
		k := m.key()
		if bound && m.rng.IntN(4) == 0 {
			k = "b" + k[1:]
		}
		what = "get " + k + ";"
		m.log = append(m.log, what)
		what = ""
		m.check(k)
	case op < 85:
		what = "spill;"
		m.settle()
		m.r.space.SpillAll(ctx)
	case op < 90:
		what = "reload;"
		if files := m.r.state.Cold.Files.Spilled(); len(files) > 0 {
			m.r.space.Reload(ctx, files[m.rng.IntN(len(files))], coldspace.Fate(m.rng.IntN(2)))
		}
	case op < 97:
		what = "merge;"
		m.r.space.MergeAll(ctx)
	case op < 98:
		what = "clear;"
		m.r.Clear(ctx, "ns", false)
		for k := range m.now_ {
			m.set(k, value{})
		}
	case op < 101:
		lost, arena := m.rng.IntN(3) == 0, m.rng.IntN(2) == 0
		what = fmt.Sprintf("restart arena %v;", arena)
		m.close(arena)
		clear(m.was)
		if lost {
			what = "restart without index;"
			_ = os.RemoveAll(m.local)
		}
		m.open()
		if os.Getenv("SPILL_ALL") != "" {
			m.all()
		}
	case op < 104 && m.kills != "":
		arena, index := m.rng.IntN(2) == 0, m.rng.IntN(3) > 0
		switch m.kills {
		case "process":
			arena, index = true, true
		case "node":
			arena, index = false, true
		case "index":
			arena, index = true, false
		}
		what = fmt.Sprintf("kill, arena %v, index %v;", arena, index)
		m.log = append(m.log, what)
		what = ""
		m.kill(arena, index)
		m.reconcile()
	}
	if what != "" {
		m.log = append(m.log, what)
	}
}

func (m *spillModel) all() {
	m.t.Helper()
	m.log = append(m.log, "all;")
	var want []string
	for i := range 150 {
		for _, k := range []string{fmt.Sprint("k", i), fmt.Sprint("b", i)} {
			m.check(k)
			if m.visible(k) {
				want = append(want, k)
			}
		}
	}
	slices.Sort(want)
	got := m.r.scanAll()
	for _, k := range want {
		if !slices.Contains(got, k) {
			m.fail("a scan does not have %s", k)
		}
	}
	if !slices.Equal(got, want) {
		m.fail("a scan has %q, want %q", got, want)
	}
}

// spillSeeds are those of SPILL_SEED and SPILL_SEEDS, or a few, with some that found
// what others did not.
func spillSeeds() (seeds []int) {
	if os.Getenv("SPILL_SEED")+os.Getenv("SPILL_SEEDS") == "" {
		return []int{0, 1, 2, 3, 4, 31, 92, 152}
	}
	first, _ := strconv.Atoi(os.Getenv("SPILL_SEED"))
	n, _ := strconv.Atoi(cmp.Or(os.Getenv("SPILL_SEEDS"), "4"))
	for seed := first; seed < first+n; seed++ {
		seeds = append(seeds, seed)
	}
	return seeds
}

func TestSpillModel(t *testing.T) {
	for _, seed := range spillSeeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runSpillModel(t, seed, os.Getenv("SPILL_KILLS"), os.Getenv("SPILL_BOUND") != "")
		})
	}
}

// A withdrawal that the index has before the files do is not lost with both; and of two
// copies of a name's record the index and the files take the same one to be in the way.
func TestSpillModelKills(t *testing.T) {
	runSpillModel(t, 2, "index", false)
	runSpillModel(t, 3016, "process", false)
}

// Bound names are hidden in files as they are in memory, and a file whose names are
// withdrawn stays until the withdrawals are in another one.
func TestSpillModelBound(t *testing.T) {
	runSpillModel(t, 1, "", true)
	runSpillModel(t, 20104, "process", true)
	runSpillModel(t, 20133, "process", true)
	runSpillModel(t, 5004, "process", true)
}

func runSpillModel(t *testing.T, seed int, kills string, bound bool, below ...*testdevice.Tier) {
	base := t.TempDir()
	w := &world{t: t, late: new(atomic.Int64), campaign: "c", dir: filepath.Join(base, "d"), local: filepath.Join(base, "i"), arena: filepath.Join(base, "a")}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &spillModel{world: w, rng: rand.New(rand.NewPCG(uint64(seed), 5)), now_: map[string]value{}, was: map[string][]value{}, kills: kills}
	if len(below) > 0 {
		w.disk = below[0]
	}
	w.open()
	most := 0
	for step := range 400 {
		m.step(bound)
		if k := os.Getenv("SPILL_WATCH"); k != "" {
			if is := m.r.Contains(context.Background(), "ns", k); is != m.visible(k) && os.Getenv("SPILL_PASSIVE") == "" {
				m.fail("WATCH %s is there: %v", k, is)
			}
			m.r.state.Mu.Lock()
			b := "none"
			if n := m.r.state.Mu.Names.Get("ns", k); n != nil && n.Block() != nil {
				x := n.Block().Owner.(*residency.Block)
				b = fmt.Sprint(x.Cold, x.From, x.InAny(), x.Info.ID, n.Seq())
			}
			m.r.state.Mu.Unlock()
			f := m.r.state.Cold.Files.Catalogue().Peek("ns", []string{k})[0]
			t.Log(step, m.log[max(0, len(m.log)-1):], "HERE", b, "CAT", f.Info.ID, f.Name.Seq, f.Segment.Path, "OWN", m.r.state.Cold.Files.Catalogue().Own([]block.ID{ids[m.now_[k].content]})[0].Segment.Path, "REC", m.records(k), "LS", ls(m.dir), m.r.state.Cold.Files.Spilled())
		}
		if step%100 == 99 {
			m.all()
		}
		if w.disk != nil {
			most = max(most, w.disk.Usage().Blocks)
		}
	}
	if w.disk != nil && most == 0 {
		t.Error("no block was on the disk")
	}
	_ = w.r.Close(context.Background())
}

func ls(dir string) (all []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.bin"))
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			continue
		}
		all = append(all, f[len(f)-35:], fmt.Sprint(st.Size()))
	}
	return all
}

// records is what the files have of a name.
func (m *spillModel) records(key string) (what string) {
	tier := m.r.state.Cold.Files.(*lustre.Tier)
	ps, _ := tier.Parts(context.Background())
	for _, p := range ps {
		for n := range uint64(4) {
			got, err := tier.Contents(context.Background(), p, n, -1)
			if err != nil {
				continue
			}
			for _, x := range got.Names {
				if x.Name.Key == key {
					what += fmt.Sprintf(" RECORD %x/%d sealed %v dropped %v seq %d;", p.Incarnation, n, got.Sealed, x.Dropped, x.Name.Seq)
				}
			}
		}
	}
	return what
}

func newWorld(t *testing.T) *world {
	base := t.TempDir()
	w := &world{t: t, late: new(atomic.Int64), campaign: "c", dir: filepath.Join(base, "d"), local: filepath.Join(base, "i"), arena: filepath.Join(base, "a")}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.open()
	return w
}

func (w *world) spill() {
	w.t.Helper()
	if _, err := w.r.Drain(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.r.space.SpillAll(context.Background())
	if len(w.r.state.Cold.Files.Spilled()) == 0 {
		w.t.Fatal("nothing is spilled")
	}
}
