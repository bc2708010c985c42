package names

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
)

var update = flag.Bool("update", false, "write the changes that operations have into testdata")

// script plays operations of a text on a graph and writes down the changes. Time
// and sequence numbers are in seconds since the script began.
type script struct {
	g      *Graph
	now    time.Time
	blocks map[string]*Block
	leases map[string]*Lease // the last of each name
}

var begin = time.Unix(1_800_000_000, 0)

func newScript() *script {
	return &script{New(1), begin, map[string]*Block{}, map[string]*Lease{}}
}

func (s *script) block(name string) *Block {
	b := s.blocks[name]
	if b == nil {
		b = &Block{Info: block.Info{Size: 100}, Owner: name}
		b.Info.ID[0] = byte(len(s.blocks) + 1)
		s.blocks[name] = b
	}
	return b
}

// do carries out one line and returns what the operation returned.
func (s *script) do(line string) string {
	w := strings.Fields(line)
	option := map[string]string{}
	for _, o := range w[1:] {
		if k, v, ok := strings.Cut(o, "="); ok {
			option[k] = v
		}
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(line + ": " + err.Error())
		}
		return n
	}
	after := func(text string) time.Time {
		if text == "" || text == "never" {
			return time.Time{}
		}
		return begin.Add(time.Duration(number(text)) * time.Second)
	}
	stamp := func(text string) uint64 { return uint64(after(text).UnixNano()) }
	record := func() block.Name {
		_, prefix := option["prefix"]
		_, bound := option["bound"]
		r := block.Name{Namespace: "ns", Key: w[1], Parent: option["parent"], Prefix: prefix, Bound: bound, Expires: after(option["expires"])}
		if d := option["depth"]; d != "" {
			r.Depth = uint32(number(d))
		}
		if at := option["seq"]; at != "" {
			r.Seq = stamp(at)
		}
		return r
	}
	name := func() *Name { return s.g.Get("ns", w[1]) }
	switch w[0] {
	case "at":
		s.now = after(w[1])
	case "put":
		_, keep := option["keepttl"]
		s.g.Put(record(), keep, s.block(w[2]), s.now)
	case "copy":
		s.g.Copy(record(), s.block(w[2]))
	case "restore":
		s.g.Restore(record(), s.block(w[2]))
	case "move":
		s.g.Move(name(), s.block(w[2]))
	case "withdraw":
		s.g.Withdraw(name(), s.g.Tick(s.now))
	case "drop":
		s.g.Drop(name())
	case "expire":
		s.g.Expire(name(), after(w[2]), s.now)
	case "expired":
		if n := s.g.NextExpired(s.now); n != nil {
			return n.Key()
		}
		return "none"
	case "enter":
		s.g.Enter(s.block(w[1]), number(w[2]))
	case "leave":
		s.g.Leave(s.block(w[1]), number(w[2]))
	case "lease":
		l := s.g.Lease(name(), w[2], after(w[3]))
		if l == nil {
			return "prolonged"
		}
		s.leases[w[1]] = l
	case "hold":
		s.g.HoldLease(s.leases[w[1]], int64(number(w[2])))
	case "endowner":
		return fmt.Sprint(s.g.EndOwner(w[1], 100))
	case "endlease":
		return fmt.Sprint(s.g.EndLease(s.now))
	case "visible":
		return fmt.Sprint(s.g.Lookup("ns", w[1], func() time.Time { return s.now }) != nil)
	case "show":
		n := name()
		if n == nil {
			return "none"
		}
		text := fmt.Sprintf("children=%d stored=%d resident=%v leases=%d", n.children, n.stored, n.resident, len(n.leases))
		if n.block != nil {
			text += fmt.Sprintf(" block=%s depth=%d seq=%s put=%s", n.block.Owner, n.Depth(), since(n.Seq()), since(n.Put()))
		}
		if n.parent != nil {
			text += " parent=" + n.parent.Key()
		}
		return text
	default:
		panic("no operation " + line)
	}
	return ""
}

// since writes a sequence number as seconds since the beginning, and ticks.
func since(seq uint64) string {
	d := time.Duration(int64(seq) - begin.UnixNano())
	if ticks := d % time.Second; ticks != 0 {
		return fmt.Sprintf("%d+%d", d/time.Second, int64(ticks))
	}
	return fmt.Sprint(int64(d / time.Second))
}

var kinds = map[Kind]string{
	Bound: "bound", Unbound: "unbound", Gone: "gone", Link: "link", Unlink: "unlink", Renewed: "renewed", Stored: "stored",
	Removed: "removed", Hold: "hold", Release: "release", Needed: "needed", Moved: "moved", Empty: "empty",
}

func (c Change) String() string {
	text := kinds[c.Kind]
	if c.Name != nil {
		text += " " + c.Name.Key()
	}
	if c.Record != nil {
		text += " " + c.Record.Key + "@" + since(c.Record.Seq)
	}
	if c.Block != nil {
		text += fmt.Sprint(" ", c.Block.Owner)
	}
	if c.Kind == Link {
		text += " @" + since(c.Name.Seq())
	}
	if c.N != 0 {
		text += fmt.Sprintf(" level %d × %d", c.Level, c.N)
	}
	return text
}

// TestScenarios plays testdata/*.txt: lines with an operation, each followed by
// lines, indented, with what it returned and its changes. go test -update writes
// those.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("changes differ; with -update they become\n%s", got)
			}
		})
	}
}

func play(t *testing.T, text string) string {
	var got strings.Builder
	s := newScript()
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "\t") {
			continue
		}
		got.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if result := s.do(line); result != "" {
			got.WriteString("\t= " + result + "\n")
		}
		for c, ok := s.g.Next(); ok; c, ok = s.g.Next() {
			got.WriteString("\t" + c.String() + "\n")
		}
		verify(t, s)
	}
	return got.String()
}

func verify(t *testing.T, s *script) {
	t.Helper()
	if err := s.g.Verify(); err != nil {
		t.Fatal(err)
	}
	for _, b := range s.blocks {
		if err := b.Verify(); err != nil {
			t.Fatal(err)
		}
	}
}
