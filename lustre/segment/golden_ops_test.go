package segment

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// tokenName finds in a token's name the word, the owner and when it was renewed.
var tokenName = regexp.MustCompile(`(alive|closed)\.0*([0-9a-f]+)\.(\d+)\.[0-9a-f]{32}\.\d+\.\d+\.\d+\.node`)

// ops runs scenarios on one store and writes down what they do to files.
type ops struct {
	t     *testing.T
	s     *opened
	fault *vfstest.Fault
	trace *vfstest.Trace
	dir   string
	lines []string // of this step
	out   strings.Builder
}

func newOps(t *testing.T, change func(*Options)) *ops {
	o := &ops{t: t, dir: t.TempDir()}
	o.fault = vfstest.NewFault(vfs.OS{})
	o.open(1, change)
	return o
}

func (o *ops) open(incarnation uint64, change func(*Options)) {
	o.trace = vfstest.NewTrace(o.fault, o.dir)
	opt := testOptions(o.dir, incarnation)
	opt.FS = o.trace
	if change != nil {
		change(&opt)
	}
	o.s = openStore(o.t, opt)
	settleDown(o.s)
}

// does notes the operations since the last call.
func (o *ops) does(what string) {
	settleDown(o.s)
	o.out.WriteString("# " + what + "\n")
	lines := o.take()
	o.lines = nil
	for i := range lines { // files are closed in no order
		for j := i; j > 0 && strings.HasPrefix(lines[j], "close ") && strings.HasPrefix(lines[j-1], "close ") && lines[j] < lines[j-1]; j-- {
			lines[j], lines[j-1] = lines[j-1], lines[j]
		}
	}
	if text := strings.Join(lines, "\n"); text != "" {
		text = strings.ReplaceAll(text, "rank003-000000000000000", "run")
		text = strings.ReplaceAll(text, "agg_rank003_", "")
		o.out.WriteString(tokenName.ReplaceAllString(text, "$1.$2.$3") + "\n")
	}
}

// take adds what was traced to the lines of this step.
func (o *ops) take() []string {
	if text := o.trace.Take(); text != "" {
		o.lines = append(o.lines, strings.Split(text, "\n")...)
	}
	return o.lines
}

// awaitSync waits until the first fsync of this step is under way.
func (o *ops) awaitSync() {
	for !slices.ContainsFunc(o.take(), func(l string) bool { return strings.HasPrefix(l, "sync ") }) {
		time.Sleep(time.Millisecond)
	}
}

func (o *ops) put(seed uint64, size int) {
	o.t.Helper()
	put(o.t, o.s, testItem(seed, size))
}

func (o *ops) refused(seed uint64, size int) {
	o.t.Helper()
	wantErr(o.t, "Put", o.s.Put(o.t.Context(), testItem(seed, size)), tiers.ErrUnavailable)
}

// scenarios are the golden ones; the order of operations in them is what
// docs/format.md §1.1 and docs/lustre.md ask for.
var scenarios = []struct {
	name string
	run  func(o *ops)
}{
	{"group commit: puts that wait while an fsync runs share the next one", func(o *ops) {
		o.put(1, 5000)
		o.does("first put")
		gate := make(chan struct{})
		o.fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: gate})
		ended := make(chan error)
		for i := range 4 {
			go func() { ended <- o.s.Put(o.t.Context(), testItem(uint64(2+i), 5000)) }()
			for o.s.writtenFrames() < uint64(2+i) {
				time.Sleep(time.Millisecond)
			}
			o.awaitSync()
		}
		close(gate)
		for range 4 {
			if err := <-ended; err != nil {
				o.t.Error(err)
			}
		}
		o.does("four puts at once")
	}},
	{"no space: the frame goes to a new segment, then the store is read-only", func(o *ops) {
		o.put(1, 5000)
		o.does("first put")
		o.fault.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrNoSpace, Bytes: 4096})
		o.put(2, 5000)
		o.does("put, ENOSPC once")
		o.fault.Clear()
		o.fault.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrQuota})
		o.refused(3, 5000)
		o.does("put, EDQUOT for good")
		o.fault.Clear()
		o.refused(3, 5000)
		o.does("put while read-only")
	}},
	{"poison: a segment that saw an error gets no frame and no footer", func(o *ops) {
		o.put(1, 5000)
		o.does("first put")
		o.fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO})
		o.refused(2, 5000)
		o.does("put, fsync fails once")
		o.put(2, 5000)
		o.does("the same from memory")
		wantBytes(o.t, o.s, testItem(1, 5000), testItem(2, 5000))
		o.does("both are read")
		o.fault.Add(vfstest.Rule{Op: vfs.OpRename, Count: 1, Err: vfs.ErrIO})
		o.fault.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO})
		o.refused(3, 5000)
		o.does("put, write fails")
		o.refused(3, 5000)
		o.does("put, rename of a new segment fails")
		closeStore(o.t, o.s)
		o.does("close")
	}},
	{"recovery: a sealed segment is its footer, an unsealed one is scanned", func(o *ops) {
		o.put(1, 5000)
		closeStore(o.t, o.s)
		o.open(2, nil)
		o.put(2, 5000)
		o.put(3, 100)
		o.trace.Take()
		if err := os.WriteFile(o.dir+"/rank003-0000000000000002/agg_rank003_000001.bin.tmp", nil, 0o600); err != nil {
			o.t.Fatal(err)
		}
		o.open(3, nil) // the second run is not closed: it crashed
		o.does("recovery")
		if err := o.s.Evict(testItem(1, 5000).Info.ID); err != nil {
			o.t.Fatal(err)
		}
		o.does("evict the only block of a segment")
		closeStore(o.t, o.s)
		o.does("close of a store that wrote nothing")
	}},
	{"a put that is given up: its segment gets no more frames", func(o *ops) {
		o.put(1, 5000)
		o.does("first put")
		gate := make(chan struct{})
		o.fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: gate})
		ctx, cancel := context.WithCancel(o.t.Context())
		ended := make(chan error)
		go func() { ended <- o.s.Put(ctx, testItem(2, 5000)) }()
		o.awaitSync()
		cancel()
		wantErr(o.t, "Put", <-ended, tiers.ErrUnavailable)
		o.put(3, 5000)
		close(gate)
		o.does("a put that hangs, another one")
		closeStore(o.t, o.s)
		o.does("close")
	}},
}

// TestGoldenOperations compares the sequence of file operations of each scenario
// with testdata/ops.golden: an fsync that is missing, or one too many, is a
// difference there.
func TestGoldenOperations(t *testing.T) {
	var got strings.Builder
	for _, sc := range scenarios {
		o := newOps(t, nil)
		o.does("open")
		sc.run(o)
		got.WriteString("## " + sc.name + "\n" + o.out.String() + "\n")
	}
	const path = "testdata/ops.golden"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := string(readFile(t, path))
	if got.String() != want {
		g, w := strings.Split(got.String(), "\n"), strings.Split(want, "\n")
		for i := range g {
			if i >= len(w) || g[i] != w[i] {
				t.Fatalf("line %d of %s:\n%s\nwant\n%s\nall:\n%s", i+1, path, g[i], w[min(i, len(w)-1)], got.String())
			}
		}
		t.Fatalf("%s has more lines", path)
	}
}
