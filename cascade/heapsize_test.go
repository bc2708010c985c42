package cascade

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"cascadekv/lustre"
)

// What Limits.NameBytes counts for a name is about the heap that it takes, with its
// block, in the store, in shm and in lustre together. It is measured in a process of its own: the tests before
// leave things that go meanwhile.
func TestHeapOfNames(t *testing.T) {
	const child = "CASCADE_HEAP_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const names = 40_000
	before := heap()
	r := newRig(t, 16<<20, false, func(o *Options) {
		cold, err := lustre.Open(lustre.Options{Dir: t.TempDir(), SegmentBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		o.Cold, o.Limits.RoomDeadline = cold, time.Minute
	})
	for i := range names {
		r.put(ns(fmt.Sprintf("model@1/key-%032x", i)), binary.LittleEndian.AppendUint64(make([]byte, 100), uint64(i)))
	}
	if _, err := r.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	took, counted := (heap()-before)/names, r.Stats().NameBytes/names
	t.Logf("a name takes %d bytes of heap, %d are counted", took, counted)
	if took > counted*3/2 || took < counted/2 {
		t.Errorf("a name takes %d bytes of heap, %d are counted", took, counted)
	}
}
