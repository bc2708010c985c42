package cascade

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// hbmRig has a small host tier in HBM's place above shm.
func hbmRig(t *testing.T, cold bool, change ...func(*Options)) *rig {
	t.Helper()
	return newRig(t, 16<<20, cold, append(change, func(o *Options) {
		h, err := host.Open(8 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.WaitReady(context.Background()); err != nil {
			t.Fatal(err)
		}
		o.Memory = []tiers.Memory{fastTier{h}}
	})...)
}

// fastTier tells the two host tiers of a test apart.
type fastTier struct{ tiers.Memory }

func (fastTier) Name() string { return "hbm" }

// literally makes a store that goes by the paper's algorithms to the letter.
func literally(o *Options) { o.Policy = "paper" }

// TestVictimsFallAsAlgorithm1Says: a victim of the fastest tier that is a
// shared prefix goes to shm, any other to the cold tier (lines 6 to 10).
func TestVictimsFallAsAlgorithm1Says(t *testing.T) {
	r := hbmRig(t, true, literally)
	const size = 400_000
	for i := range 30 { // more than the fastest tier has
		e := ns(fmt.Sprint("prefix", i))
		e.Prefix = true
		r.put(e, data(uint64(i), size))
	}
	for i := range 20 {
		r.put(ns(fmt.Sprint("session", i)), data(uint64(100+i), size))
	}
	for i := range 10 {
		info, ok := r.Stat(context.Background(), "ns", fmt.Sprint("prefix", i))
		if !ok || info.Tiers[0] != "shm" {
			t.Errorf("prefix %d is in %v, want shm", i, info.Tiers)
		}
	}
	info, ok := r.Stat(context.Background(), "ns", "session0")
	if !ok || info.Tiers[0] != "host" {
		t.Errorf("a session's block is in %v, want the cold tier alone", info.Tiers)
	}
	st := r.Stats()
	if st.Lost != 0 || st.Tiers[0].Demoted == 0 {
		t.Errorf("%+v", st.Tiers)
	}
	checkInvariants(t, r.Store)
}

// TestVictimsFallToMemory: by all other policies memory that is there is used before files: what nobody asked for again is
// not lost beside it, though it is not worth a write.
func TestVictimsFallToMemory(t *testing.T) {
	const size, n = 400_000, 50 // 8 MiB of the fastest tier and 16 of shm have them
	for _, name := range []string{"prefix", "lru", "arc", "s3fifo"} {
		t.Run(name, func(t *testing.T) {
			r := hbmRig(t, true, func(o *Options) { o.Policy, o.Limits.StoreThreshold = name, 2 })
			for i := range n {
				r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
			}
			for i := range n {
				if in := r.from(fmt.Sprint(i)); len(in) == 0 || in[0] == "host" {
					t.Errorf("block %d is in %v, want memory", i, in)
				}
			}
			if st := r.Stats(); st.Unwritten != 0 || st.Tiers[0].Demoted == 0 || st.Tiers[1].Usage.Blocks == 0 {
				t.Errorf("%d dropped unwritten; %+v", st.Unwritten, st.Tiers)
			}
			checkInvariants(t, r.Store)
		})
	}
}

// TestHitsArePromoted is Algorithm 2: a hit in shm, or below, is copied up.
func TestHitsArePromoted(t *testing.T) {
	r := hbmRig(t, true)
	const size = 400_000
	for i := range 40 {
		e := ns(fmt.Sprint(i))
		e.Prefix = i < 5
		r.put(e, data(uint64(i), size))
	}
	for _, i := range []int{0, 6} {
		key := fmt.Sprint(i)
		first := r.want(key, data(uint64(i), size))
		if first == "hbm" {
			t.Fatalf("block %d never left the fastest tier", i)
		}
		if again := r.want(key, data(uint64(i), size)); again != "hbm" {
			t.Errorf("block %d: first from %s, then from %s; want hbm", i, first, again)
		}
	}
	checkInvariants(t, r.Store)
}

// TestMissesByTier: a get counts as a miss of each tier of memory above the one
// that served it, or of every tier.
func TestMissesByTier(t *testing.T) {
	r := hbmRig(t, true, literally)
	const size = 400_000
	for i := range 40 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	misses := func() (n [3]uint64) {
		for i, tier := range r.Stats().Tiers {
			n[i] = tier.Misses
		}
		return n
	}
	served := map[string]bool{}
	for _, key := range []string{"39", "6", "6", "nothing"} {
		before, tier := misses(), ""
		if v, err := r.Get(t.Context(), "ns", key); err == nil {
			tier = v.Tier()
			v.Release()
		}
		served[tier] = true
		want := map[string][3]uint64{"hbm": {}, "shm": {1, 0, 0}, "host": {1, 1, 0}, "": {1, 1, 1}}[tier]
		after := misses()
		for i := range after {
			if after[i]-before[i] != want[i] {
				t.Errorf("a get of %s, served by %q: tier %d has %d more misses, want %d", key, tier, i, after[i]-before[i], want[i])
			}
		}
	}
	if !served["hbm"] || !served["host"] || !served[""] {
		t.Errorf("served by %v: one was never seen", served)
	}
}

func TestThreeTiersUnderLoad(t *testing.T) {
	for name, cold := range map[string]bool{"with a cold tier": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			r := hbmRig(t, cold)
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 5))
					for range 120 {
						k := rng.IntN(120)
						key, p := fmt.Sprint(k), data(uint64(k), 50_000+k*3000)
						e := ns(key)
						e.Prefix = k%3 == 0
						if k > 0 {
							e.Parent = fmt.Sprint(k / 2)
						}
						switch rng.IntN(4) {
						case 0:
							if _, err := r.Put(context.Background(), e, p, nil); err != nil && !errors.Is(err, ErrNoRoom) {
								t.Error(err)
							}
						case 1:
							if err := r.stage(e, p); err != nil && !errors.Is(err, ErrNoRoom) {
								t.Error(err)
							}
						default:
							if v, err := r.Get(context.Background(), "ns", key); err == nil {
								if v.Size() != int64(len(p)) || string(v.Bytes()) != string(p) {
									t.Errorf("wrong bytes of %s from %s", key, v.Tier())
								}
								v.Release()
							} else if !errors.Is(err, ErrMiss) {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			eventually(t, "nothing is under way", func() bool { return r.Stats().Views == 0 })
			if st := r.Stats(); st.Corrupt != 0 || cold && st.Lost != 0 {
				t.Errorf("%+v", st)
			}
			checkInvariants(t, r.Store)
		})
	}
}
