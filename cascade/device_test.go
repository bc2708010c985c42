package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
)

// deviceRig has a device above shm, and a cold tier if asked for. Whoever touches
// a block on the device, but for the tier itself, panics.
func deviceRig(t *testing.T, cold bool, change ...func(*Options)) (*rig, *testdevice.Tier) {
	t.Helper()
	d := testdevice.New(8 << 20)
	change = append(change, func(o *Options) { o.Memory = []tiers.Memory{d} })
	return newRig(t, 16<<20, cold, change...), d
}

// from returns the tiers that have a key, fastest first.
func (r *rig) from(key string) []string {
	r.t.Helper()
	info, _ := r.Stat(context.Background(), "ns", key)
	return info.Tiers
}

// TestDeviceOnTop puts more than a device holds, by every way, and gets all of it.
func TestDeviceOnTop(t *testing.T) {
	r, _ := deviceRig(t, true)
	const n, size = 80, 400_000 // more than memory has
	for i := range n {
		e, p := ns(fmt.Sprint(i)), data(uint64(i), size)
		e.Prefix = i < 10
		if i%2 == 0 {
			r.put(e, p)
		} else if err := r.stage(e, p); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.from(fmt.Sprint(n - 1)); len(got) == 0 || got[0] != "device" {
		t.Errorf("the last block is in %v, want the device", got)
	}
	if got := r.from("0"); len(got) != 1 || got[0] != "host" {
		t.Errorf("the first block is in %v, want the cold tier", got)
	}
	if got := r.from("50"); len(got) == 0 || got[0] != "shm" {
		t.Errorf("a block that has left the device is in %v, want shm", got)
	}
	seen := map[string]int{r.want("79", data(79, size)): 1}
	seen[r.want("50", data(50, size))]++
	for i := range n {
		key, p := fmt.Sprint(i), data(uint64(i), size)
		seen[r.want(key, p)]++
		if again := r.want(key, p); again != "device" && i < 10 {
			t.Errorf("block %d was not promoted: it came from %s", i, again)
		}
	}
	if seen["device"] == 0 || seen["shm"] == 0 || seen["host"] == 0 {
		t.Errorf("blocks came from %v", seen)
	}
	if _, err := r.Drain(context.Background()); err != nil || r.Stats().DirtyBlocks != 0 {
		t.Errorf("Drain: %v; %d blocks are dirty", err, r.Stats().DirtyBlocks)
	}
	eventually(t, "ids are computed", func() bool { return r.Stats().PendingIDs == 0 })
	if info, _ := r.Stat(context.Background(), "ns", "59"); info.ID != block.Sum(block.Bits128, data(59, size)) {
		t.Errorf("block 59 got the id %v", info.ID)
	}
	if st := r.Stats(); st.Lost != 0 || st.Corrupt != 0 || st.Tiers[0].Demoted == 0 || st.Tiers[0].Promoted == 0 {
		t.Errorf("%+v", st)
	}
	checkInvariants(t, r.Store)
}

// TestDeviceIsReadByOthers: another rank, and a process that maps the arena, get a
// block that only the device has.
func TestDeviceIsReadByOthers(t *testing.T) {
	r, _ := deviceRig(t, false)
	p := data(1, 300_000)
	r.put(ns("k"), p)
	at := Local{r.Store}.State("ns", "k").Memory
	if at == nil || at.Region != 0 {
		t.Fatalf("the block is stated to be in %+v", at)
	}
	src := fabric.Source{Region: at.Region, Offset: at.Offset, Generation: at.Generation, Length: int64(len(p))}
	hold, err := Local{r.Store}.Hold(src)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(hold.Bytes(), p) {
		t.Error("another rank reads other bytes")
	}
	hold.Release()
	v, err := r.Get(t.Context(), "ns", "k")
	if err == nil {
		v, err = r.Share(t.Context(), v)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.wantInArena(v, p)
	v.Release()
	if got := r.from("k"); len(got) != 1 || got[0] != "device" {
		t.Errorf("the block is in %v, want the device alone", got)
	}
}

// TestDamageOnADevice: a block whose bytes are bad is served from below if it is
// there, and is a miss otherwise; it is neither demoted nor written.
func TestDamageOnADevice(t *testing.T) {
	r, d := deviceRig(t, true)
	const size = 400_000
	damage := func(key string, p []byte) {
		if err := d.Corrupt(block.Sum(block.Bits128, p)); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	for i, key := range []string{"only copy", "drained", "demoted"} {
		r.put(ns(key), data(uint64(i), size))
	}
	damage("only copy", data(0, size))
	if _, err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	r.want("only copy", nil)
	damage("drained", data(1, size))
	if tier := r.want("drained", data(1, size)); tier != "host" {
		t.Errorf("a drained block came from %s", tier)
	}
	v, err := r.Get(t.Context(), "ns", "demoted", Unverified)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	damage("demoted", data(2, size))
	if v, err := r.Get(t.Context(), "ns", "demoted", Unverified); err != nil || !bytes.Equal(v.Bytes(), data(2, size)) {
		t.Errorf("a copy that is read for a socket: %v", err)
	} else {
		v.Release()
	}
	if st := r.Stats(); st.Corrupt != 3 {
		t.Errorf("%d blocks were found to be damaged, want 3", st.Corrupt)
	}
	for i := range 12 { // of which one is damaged when the device gives it up
		e := ns(fmt.Sprint("prefix", i))
		e.Prefix = true
		r.put(e, data(uint64(100+i), size))
	}
	damage("prefix0", data(100, size))
	for i := range 20 {
		r.put(ns(fmt.Sprint("more", i)), data(uint64(200+i), size))
	}
	r.want("prefix0", nil)
	r.want("prefix1", data(101, size))
	checkInvariants(t, r.Store)
}

// TestDeviceUnderLoad puts, stages, gets and deletes from several goroutines.
func TestDeviceUnderLoad(t *testing.T) {
	r, _ := deviceRig(t, true)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 6))
			for range 100 {
				k := rng.IntN(100)
				key, p := fmt.Sprint(k), data(uint64(k), 50_000+k*3000)
				e := ns(key)
				e.Prefix = k%3 == 0
				var err error
				switch rng.IntN(4) {
				case 0:
					_, err = r.Put(context.Background(), e, p, nil)
				case 1:
					err = r.stage(e, p)
				case 2:
					r.Delete(context.Background(), "ns", key)
				default:
					v, miss := r.Get(context.Background(), "ns", key)
					if miss == nil && !bytes.Equal(v.Bytes(), p) {
						err = errors.New("wrong bytes from " + v.Tier())
					}
					if miss == nil {
						v.Release()
					}
				}
				if err != nil && !errors.Is(err, ErrNoRoom) {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	checkInvariants(t, r.Store)
}

// TestBytesMoveWithoutGarbage: by way of slots and pins costs a put and a get no
// allocation for each piece.
func TestBytesMoveWithoutGarbage(t *testing.T) {
	r := newRig(t, 16<<20, false)
	const runs, piece = 100, 4096
	st, err := r.Stage(t.Context(), (runs+1)*piece)
	if err != nil {
		t.Fatal(err)
	}
	p := data(1, piece)
	if n := testing.AllocsPerRun(runs, func() { st.Append(p) }); n > 0 {
		t.Errorf("Append allocates %v times", n)
	}
	if err := st.Commit(t.Context(), ns("k")); err != nil {
		t.Fatal(err)
	}
	v, err := r.Get(t.Context(), "ns", "k", Unverified)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if n := testing.AllocsPerRun(10, func() { err = v.Sound(context.Background()) }); n > 0 || err != nil {
		t.Errorf("Sound allocates %v times: %v", n, err)
	}
}
