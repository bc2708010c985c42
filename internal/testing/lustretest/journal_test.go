package lustretest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// journal writes down what a storm knows. A record counts once note has
// returned: then it is in a file of the host.
type journal struct {
	f *os.File

	mu      sync.Mutex
	wake    *sync.Cond
	pending bytes.Buffer
	added   int // records
	safe    int // of those, in the file
	writing bool
	failed  error
}

func newJournal(path string) (*journal, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f}
	j.wake = sync.NewCond(&j.mu)
	return j, nil
}

// note records something about a batch. Callers share writes.
func (j *journal) note(what string, seq uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintf(&j.pending, "%s %d\n", what, seq)
	j.added++
	for mine := j.added; j.safe < mine && j.failed == nil; {
		if j.writing {
			j.wake.Wait()
			continue
		}
		p, upTo := bytes.Clone(j.pending.Bytes()), j.added
		j.pending.Reset()
		j.writing = true
		j.mu.Unlock()
		_, err := j.f.Write(p)
		if err == nil {
			err = j.f.Sync()
		}
		j.mu.Lock()
		j.writing, j.safe, j.failed = false, upTo, err
		j.wake.Broadcast()
	}
	return j.failed
}

// The records of a journal.
const (
	notePut   = "put"   // the batch is durable
	noteEvict = "evict" // the batch is about to be evicted
)

// record is what a journal says of one batch.
type record struct{ put, evicted bool }

// readJournal returns what a journal says. A last line that was cut off says
// nothing.
func readJournal(path string) (map[uint64]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	known := map[uint64]record{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return known, nil
		}
		var what string
		var seq uint64
		if _, err := fmt.Sscanf(line, "%s %d\n", &what, &seq); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		r := known[seq]
		r.put, r.evicted = r.put || what == notePut, r.evicted || what == noteEvict
		known[seq] = r
	}
}

// journalPath is where the journal of a storm is in the folder of a campaign's
// journals.
func journalPath(dir string, storm uint64) string {
	return filepath.Join(dir, fmt.Sprintf("journal-%d", storm))
}

func TestJournal(t *testing.T) {
	path := journalPath(t.TempDir(), 7)
	j, err := newJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 50 {
				if err := j.note(notePut, uint64(w*50+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := j.note(noteEvict, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := j.f.WriteString("evict 4"); err != nil {
		t.Fatal(err)
	}
	known, err := readJournal(path)
	if err != nil || len(known) != 200 || !known[3].evicted || known[4].evicted || !known[199].put {
		t.Errorf("%d batches, %v; the third %+v, the fourth %+v", len(known), err, known[3], known[4])
	}
}
