package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
)

// finish brings all keys into a known state, has the ranks write and merge, and compares
// everything with the model.
func (c *churn) finish() {
	time.Sleep(settles)
	c.setAll()
	time.Sleep(settles)
	c.audit(1 << 30)
	c.drainAll()
	c.quiet()
	live := c.resolve()
	c.drainAll() // what was read may be dirty: the copy that it is of was merged
	c.compare(live, c.afterGivingUp())
	c.refs(live)
	c.fsck()
	for i, r := range c.ranks {
		c.nothingHeld(i, r)
	}
	c.report("in the end")
	if n := c.counts.stale.Load(); n > 0 {
		c.t.Errorf("%d stale reads in %d kills", n, c.kills)
	}
	c.emptied()
	for i, r := range c.ranks {
		end(c.t, r)
		r.wantNoArena(c.t)
		for _, bad := range []string{"panic: ", "DATA RACE"} {
			if r.stderr.Has(bad) {
				c.t.Errorf("rank %d logged %s", i, bad)
			}
		}
	}
	c.fsck()
	c.strangers()
}

// setAll puts or ends two of three keys, in calm, by all ranks at once.
func (c *churn) setAll() {
	var wait sync.WaitGroup
	for i := range churnRanks {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(c.seed, 200+uint64(i)))
			d := c.newClients()
			defer d.close()
			for n, k := range c.m.keys {
				if n%churnRanks != i {
					continue
				}
				switch rank := rng.IntN(churnRanks); rng.IntN(3) {
				case 0:
					if !c.put(d, rank, k, c.m.pool.draw(rng)) {
						c.t.Errorf("%s %s was not put at the end", k.ns, k.name)
					}
				case 1:
					c.del(d, rank, k)
				}
			}
		})
	}
	wait.Wait()
}

// drainAll drains all ranks at once.
func (c *churn) drainAll() {
	var wait sync.WaitGroup
	for i := range c.ranks {
		wait.Go(func() {
			d := c.newClients()
			defer d.close()
			c.drain(d, i)
		})
	}
	wait.Wait()
}

// quiet waits until no rank has merged for a while.
func (c *churn) quiet() {
	const long = 12 * time.Second // more than a turn of merging
	sum, since := uint64(0), time.Now()
	until(c.t, "end of merges", func() bool {
		time.Sleep(500 * time.Millisecond)
		n := uint64(0)
		for _, r := range c.ranks {
			if m := coldOf(r.stats(c.t)).Merged; m != nil {
				n += m.Merges
			}
		}
		if n != sum {
			sum, since = n, time.Now()
		}
		return time.Since(since) > long
	})
}

func coldOf(s cascade.Stats) cascade.TierStats {
	for _, tier := range s.Tiers {
		if tier.Name == "lustre" {
			return tier
		}
	}
	return cascade.TierStats{}
}

// resolve reads every key on every rank, and returns what is there. Of a key that was put
// in the end all ranks have that, of one that was deleted none has anything.
func (c *churn) resolve() map[*churnKey]int {
	live, apart := map[*churnKey]int{}, 0
	d := c.newClients()
	defer d.close()
	for _, k := range c.m.keys {
		found := map[int]int{}
		for i := range c.ranks {
			content, ok := c.final(d, i, k)
			if ok {
				found[content]++
				live[k] = content
			}
		}
		odd := len(found) > 1
		for _, n := range found {
			odd = odd || n != churnRanks && !c.lenient
		}
		switch {
		case !odd:
		case c.m.settled(k):
			c.t.Errorf("%s %s: contents, and on how many ranks they are found: %v%s", k.ns, k.name, found, c.m.history(k))
		default:
			delete(live, k)
			apart++
			c.t.Logf("%s %s: ranks do not agree: %v%s", k.ns, k.name, found, c.m.history(k))
		}
	}
	if apart > 0 {
		c.t.Errorf("ranks do not agree on %d names that changed while one was absent", apart)
	}
	return live
}

// final is what a rank has of a key in the end.
func (c *churn) final(d *connections, i int, k *churnKey) (content int, found bool) {
	verdict := missed
	for end := time.Now().Add(settles); ; time.Sleep(50 * time.Millisecond) {
		verdict = c.get(d, i, k)
		if verdict != lostDurable || c.missing[k] || time.Now().After(end) {
			break
		}
	}
	if verdict == lostDurable {
		c.lostKey(i, k)
	}
	if verdict != right {
		return none, false
	}
	return d.content, true
}

// census is what lies in the directory.
type census struct {
	names  map[block.Name]record // by namespace and key; of live ones
	copies map[block.ID]int      // how often it lies in segments
	bytes  map[block.ID]int64    // as stored
	lies   map[lying]bool
}

// lying is a block in segments of a rank.
type lying struct {
	id   block.ID
	rank uint32
}

type record struct {
	id   block.ID
	seq  uint64
	file string
	rank uint32
}

// standing counts the copies of each block that live names stand for: those in segments of
// ranks that have the newest record of one. The others are dead, as what was deleted is,
// until their segments are merged.
func (s *census) standing() map[block.ID]int {
	counted, copies := map[lying]bool{}, map[block.ID]int{}
	for _, r := range s.names {
		if at := (lying{r.id, r.rank}); s.lies[at] && !counted[at] {
			counted[at] = true
			copies[r.id]++
		}
	}
	return copies
}

// census reads all segments.
func (c *churn) census() *census {
	all := &census{map[block.Name]record{}, map[block.ID]int{}, map[block.ID]int64{}, map[lying]bool{}}
	type newest struct {
		record
		ended bool
	}
	names := map[block.Name]newest{}
	c.entries(func(rel string, e *segfile.Entry) {
		n := block.Name{Namespace: e.Name.Namespace, Key: e.Name.Key}
		file, _ := format.ParsePath(rel)
		switch e.Kind {
		case format.KindBlock:
			all.copies[e.Info.ID]++
			all.lies[lying{e.Info.ID, file.Rank}] = true
			all.bytes[e.Info.ID] = e.Stored
		case format.KindName, format.KindDrop:
			old, ok := names[n]
			if !ok || e.Name.Seq > old.seq || e.Name.Seq == old.seq && e.Kind == format.KindDrop {
				ended := e.Kind == format.KindDrop || !e.Name.Expires.IsZero() && e.Name.Expires.Before(time.Now())
				names[n] = newest{record{e.Info.ID, e.Name.Seq, rel, file.Rank}, ended}
			}
		}
	})
	for n, r := range names {
		if !r.ended {
			all.names[n] = r.record
		}
	}
	return all
}

// entries calls fn with all that counts in the segments.
func (c *churn) entries(fn func(path string, e *segfile.Entry)) {
	for _, path := range segmentsOf(c.t, c.lustre, "agg_*.bin") {
		rel, err := filepath.Rel(c.lustre, path)
		must(c.t, err)
		id, ok := format.ParsePath(rel)
		if !ok {
			c.t.Errorf("%s is no path of a segment", rel)
			continue
		}
		f, err := vfs.OS{}.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // merged meanwhile
		}
		must(c.t, err)
		v, err := segfile.Inspect(f, id, segfile.InspectOptions{Buf: make([]byte, 1<<20)})
		f.Close()
		must(c.t, err)
		for i := range v.Entries {
			if e := &v.Entries[i]; !e.Hidden && !e.Bad {
				fn(rel, e)
			}
		}
	}
}

// trail lists what the directory has of a key, and which ranks know what of it.
func (c *churn) trail(k *churnKey, content int) string {
	c.trailing.Lock()
	defer c.trailing.Unlock()
	s := ""
	c.entries(func(rel string, e *segfile.Entry) {
		if (e.Kind == format.KindName || e.Kind == format.KindDrop) && e.Name.Key == k.name && e.Name.Namespace == k.ns {
			what := fmt.Sprintf("content %d", c.m.pool.of[e.Info.ID])
			if e.Kind == format.KindDrop {
				what = "withdrawn"
			}
			s += fmt.Sprintf("  %s: %s at stamp %d, %v ago, expires %v\n", rel, what, e.Name.Seq, time.Since(time.Unix(0, int64(e.Name.Seq))).Round(time.Millisecond), e.Name.Expires)
		}
	})
	if content == none {
		k.mu.Lock()
		content = max(0, k.changes[len(k.changes)-1].content)
		k.mu.Unlock()
	}
	want := c.m.pool.ids[content]
	c.entries(func(rel string, e *segfile.Entry) {
		if e.Kind == format.KindBlock && e.Info.ID == want {
			s += "  " + rel + ": its bytes\n"
		}
	})
	for i, p := range c.places {
		_, out, said := finish(c.t, program("cascade"), "ring", "--key", k.name, "--namespace", k.ns, "--socket", p.socket, "--json")
		if at := strings.Index(out, `"homes"`); at >= 0 {
			out = out[at:]
		}
		s += fmt.Sprintf("  rank %d: %s%s\n", i, strings.Join(strings.Fields(out), " "), said)
	}
	return s
}

// twice is how many copies stand for something that another copy stands for too.
func (s *census) twice() (n int) {
	for _, copies := range s.standing() {
		n += copies - 1
	}
	return n
}

// duplicates lists some of them, with what stands for each.
func (s *census) duplicates() (list string) {
	shown := 0
	for id, copies := range s.standing() {
		if copies < 2 {
			continue
		}
		if shown++; shown > mostShown {
			break
		}
		list += "\n  " + id.String()
		for n, r := range s.names {
			if r.id == id {
				list += fmt.Sprintf("\n    %s %s at %d in %s", n.Namespace, n.Key, r.seq, r.file)
			}
		}
	}
	return list
}

// afterGivingUp is a census once each rank has merged after the last writes: it gives up
// then what another rank keeps too.
func (c *churn) afterGivingUp() *census {
	s := c.census()
	for end := time.Now().Add(patience); s.twice() > 0 && time.Now().Before(end); s = c.census() {
		time.Sleep(time.Second)
	}
	return s
}

// compare holds the directory against the model: it has each name that is live, for the
// same bytes, and no other; and each block once.
func (c *churn) compare(live map[*churnKey]int, s *census) {
	blocks := map[block.ID]bool{}
	unkept, extra := 0, 0
	for k, content := range live {
		id := c.m.pool.ids[content]
		blocks[id] = true
		if !k.lastAfter(c.since) {
			continue // given up for want of space, by a rank that another one relied on
		}
		n := block.Name{Namespace: k.ns, Key: k.name}
		r, ok := s.names[n]
		if (!ok || r.id != id || s.copies[id] == 0) && c.m.settled(k) {
			if unkept++; unkept <= mostShown {
				c.t.Errorf("%s %s has content %d, and the directory does not have that: record %v (of content %d), %d copies%s\n%s", k.ns, k.name, content, r, c.m.pool.of[r.id], s.copies[id], c.m.history(k), c.trail(k, none))
			}
		}
	}
	for _, k := range c.m.keys {
		n := block.Name{Namespace: k.ns, Key: k.name}
		r, ok := s.names[n]
		if _, lives := live[k]; ok && !lives && c.m.settled(k) {
			if extra++; extra <= mostShown {
				c.t.Errorf("%s %s is gone, and the directory has it: content %d in %s, of which there are %d copies%s\n%s", k.ns, k.name, c.m.pool.of[r.id], r.file, s.copies[r.id], c.m.history(k), c.trail(k, none))
			}
		}
	}
	second, secondBytes, distinct, bytes, dead := 0, int64(0), 0, int64(0), 0
	for id, n := range s.copies {
		distinct++
		bytes += s.bytes[id]
		second += n - 1
		secondBytes += int64(n-1) * s.bytes[id]
		if !blocks[id] {
			dead++
		}
	}
	c.t.Logf("directory: %d names of %d, %d not kept, %d too many; %d blocks of %d bytes, %d of them live; %d second copies, %d bytes (%.1f %%); %d blocks that nobody names",
		len(s.names), len(live), unkept, extra, distinct, bytes, len(blocks), second, secondBytes, 100*float64(secondBytes)/float64(max(1, bytes)), dead)
	twice := s.twice()
	if c.t.Logf("of the second copies %d stand for something, the others wait for a merge", twice); twice > 0 {
		c.t.Errorf("%d second copies of %d blocks%s", twice, len(blocks), s.duplicates())
	}
}

// refs holds what the ranks count of each block against the model: no rank counts more
// names than there are.
func (c *churn) refs(live map[*churnKey]int) {
	want := map[int]int64{}
	for _, content := range live {
		want[content]++
	}
	exact, below := 0, 0
	d := c.newClients()
	defer d.close()
	for k, content := range live {
		most := int64(0)
		for i := range c.ranks {
			reply, err := d.to(i).Do("CASCADE.STAT", k.ns, k.name)
			must(c.t, err)
			if id := reply.Field("id").Text(); !reply.Null() && id != c.m.pool.ids[content].String() {
				c.t.Errorf("rank %d: %s %s has id %s, not that of content %d", i, k.ns, k.name, id, content)
			}
			most = max(most, reply.Field("refs").Int)
		}
		switch {
		case most > want[content]:
			c.t.Errorf("%s %s: %d refs, and the model has %d%s", k.ns, k.name, most, want[content], c.m.history(k))
		case most == want[content]:
			exact++
		default:
			below++
		}
	}
	c.t.Logf("refs: of %d names %d are as in the model on the rank that counts most, %d below that", len(live), exact, below)
}

// fsck has the operator's tool read every byte.
func (c *churn) fsck() {
	status, out, said := finish(c.t, program("cascade"), "fsck", c.lustre, "--ids")
	if status != 0 {
		c.t.Errorf("fsck: status %d: %s%s", status, tailOf(out), said)
	}
}

// churnHoldings is what a rank holds that must not grow.
type churnHoldings struct {
	memory     int64 // taken of shm
	goroutines int
	sockets    int
	files      []string // segments that are open
	others     map[string]int
}

func (h churnHoldings) String() string {
	return fmt.Sprintf("%d bytes of shm, %d goroutines, %d sockets, %d segments, %v", h.memory, h.goroutines, h.sockets, len(h.files), h.others)
}

func holdingsOf(t *testing.T, r *rank) (h churnHoldings) {
	t.Helper()
	h.others = map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid)
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		switch {
		case err != nil:
		case strings.HasPrefix(to, "socket:"):
			h.sockets++
		case strings.Contains(to, "/agg_rank"):
			h.files = append(h.files, to)
		case strings.Contains(to, "/index/"):
			h.others["index"]++
		default:
			h.others[to]++
		}
	}
	for _, tier := range r.stats(t).Tiers {
		if tier.Name == "shm" {
			h.memory = tier.Usage.Used
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", adminSocket(r.place))
	}}}
	reply, err := client.Get("http://rank/debug/pprof/goroutine?debug=1")
	must(t, err)
	defer reply.Body.Close()
	line, err := bufio.NewReader(reply.Body).ReadString('\n')
	must(t, err)
	_, err = fmt.Sscanf(line, "goroutine profile: total %d", &h.goroutines)
	must(t, err)
	return h
}

// nothingHeld checks that nothing that a rank does holds anything any more.
func (c *churn) nothingHeld(i int, r *rank) {
	var h churnHoldings
	const slack = 8 // of goroutines that come and go
	until(c.t, fmt.Sprintf("end of what rank %d holds: %v", i, c.base[i]), func() bool {
		h = holdingsOf(c.t, r)
		unlinked := 0
		for _, f := range h.files {
			if strings.HasSuffix(f, "(deleted)") {
				unlinked++
			}
		}
		var s struct {
			cascade.Stats
			Held     json.RawMessage `json:"held"`
			InFlight struct {
				Bytes, Buffers, Stalled, Arriving, Transit int64
			} `json:"in_flight"`
		}
		r.ask(c.t, &s, "CASCADE.STATS")
		ok := h.goroutines <= c.base[i].goroutines+slack && h.sockets <= c.base[i].sockets+6*slack && unlinked == 0 &&
			s.Views == 0 && s.Leases == 0 && s.PendingIDs == 0 && s.DirtyBlocks == 0 && s.Corrupt == 0 && s.InFlight.Transit == 0
		if !ok {
			c.t.Logf("rank %d: %v, %d unlinked; at the start %v; views %d, leases %d, pending %d, dirty %d, corrupt %d, in flight %+v, held %s",
				i, h, unlinked, c.base[i], s.Views, s.Leases, s.PendingIDs, s.DirtyBlocks, s.Corrupt, s.InFlight, s.Held)
			time.Sleep(2 * time.Second)
		}
		return ok
	})
	c.t.Logf("rank %d: %v; at the start %v", i, h, c.base[i])
}

// churnSpare is what a rank keeps of its memory for the next block, once it has had one.
const churnSpare = 256 << 10

// emptied clears all namespaces: then nothing takes room, in memory or in segments.
func (c *churn) emptied() {
	d := c.newClients()
	for _, s := range c.m.spaces {
		if !c.clear(d, 0, s) {
			c.t.Errorf("%s was not cleared", s.name)
		}
	}
	d.close()
	for i, r := range c.ranks {
		left, cold := c.leftOn(i, r)
		for end := time.Now().Add(patience / 2); (left != "" || cold > 0) && time.Now().Before(end); left, cold = c.leftOn(i, r) {
			time.Sleep(500 * time.Millisecond)
		}
		if left != "" || cold > 0 {
			_, out, _ := finish(c.t, program("cascade"), "segments", "--long", c.lustre)
			c.t.Errorf("rank %d is not empty though all namespaces are: %s%d blocks in segments\n%s", i, left, cold, tailOf(out))
		}
	}
	s := c.census()
	for end := time.Now().Add(patience); (len(s.names) > 0 || c.runs() > len(c.ranks)) && time.Now().Before(end); s = c.census() {
		time.Sleep(time.Second) // in which withdrawals become durable, and ranks merge
	}
	if runs := c.runs(); len(s.names) > 0 || runs > len(c.ranks) {
		_, out, _ := finish(c.t, program("cascade"), "segments", "--long", c.lustre)
		c.t.Errorf("the directory has %d names, and something of %d runs, though all namespaces are empty\n%s", len(s.names), runs, tailOf(out))
	}
	c.t.Logf("emptied: %d blocks in files that take frames, %d bytes", len(s.copies), bytesBelow(c.t, c.lustre))
}

// runs counts the runs that have a directory.
func (c *churn) runs() int {
	all, err := filepath.Glob(filepath.Join(c.lustre, "rank*"))
	must(c.t, err)
	return len(all)
}

// leftOn describes what a rank has in memory, "" for nothing, and counts the blocks that it
// has in segments.
func (c *churn) leftOn(i int, r *rank) (left string, cold int) {
	s := r.stats(c.t)
	if s.Names != 0 || s.Blocks != 0 || s.BytesStored != 0 || s.BytesReferenced != 0 || s.NameBytes != 0 {
		left = fmt.Sprintf("%d names of %d bytes, %d blocks of %d bytes, referenced %d; ", s.Names, s.NameBytes, s.Blocks, s.BytesStored, s.BytesReferenced)
	}
	for _, tier := range s.Tiers {
		switch u := tier.Usage; {
		case tier.Name == "lustre":
			cold = u.Blocks
		case u.Blocks != 0 || u.Payload != 0 || tier.Name == "shm" && u.Used > c.base[i].memory+churnSpare:
			left += fmt.Sprintf("%s: %d blocks of %d bytes, %d taken; ", tier.Name, u.Blocks, u.Payload, u.Used)
		}
	}
	return left, cold
}

// strangers looks for files that nobody needs.
func (c *churn) strangers() {
	must(c.t, filepath.WalkDir(c.lustre, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(c.lustre, path)
		if _, ok := format.ParsePath(rel); !ok && !strings.HasPrefix(e.Name(), "closed.") {
			c.t.Errorf("%s was left over", rel)
		}
		return nil
	}))
	left, err := filepath.Glob("/dev/shm/" + "*cascade-e2e-*")
	must(c.t, err)
	for _, path := range left {
		for _, p := range c.places {
			if strings.HasPrefix(path, strings.TrimSuffix(p.arena, ".arena")) {
				c.t.Errorf("%s was left over", path)
			}
		}
	}
}
