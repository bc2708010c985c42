package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/resp"
)

// job is several ranks that are one cache. It belongs to its test's goroutine.
type job struct {
	t      *testing.T
	dir    string
	secret string // file
	lustre string // shared by all; "" for none
	shm    string // of each
	ranks  []*rank
	places []place
	seed   string // gossip address of rank 0
	more   []string
	within []string // command that runs the next rank, such as ip netns exec
}

// newJob prepares a job whose ranks have arenas of shm bytes each; more are
// flags of every rank.
func newJob(t *testing.T, shm string, lustre bool, more ...string) *job {
	t.Helper()
	j := &job{t: t, dir: t.TempDir(), shm: shm, more: more}
	j.secret = secretFile(t, j.dir)
	if lustre {
		j.lustre = filepath.Join(j.dir, "lustre")
	}
	return j
}

// startJob starts n ranks and waits until each knows all.
func startJob(t *testing.T, n int, shm string, lustre bool, more ...string) *job {
	t.Helper()
	j := newJob(t, shm, lustre, more...)
	for i := range n {
		j.add(i)
	}
	j.agree(n)
	return j
}

func secretFile(t *testing.T, dir string) string {
	t.Helper()
	random := make([]byte, 32)
	_, _ = rand.Read(random)                // it never fails
	f, err := os.CreateTemp(dir, "secret-") // of mode 0600
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(base64.StdEncoding.EncodeToString(random) + "\n"); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// flags are those of rank i, on loopback.
func (j *job) flags(i int, more ...string) []string {
	args := []string{
		"--rank", strconv.Itoa(i), "--peers-fabric", "tcp", "--peers-listen", "127.0.0.1:0", "--peers-gossip", "127.0.0.1:0",
		"--peers-seeds", j.seed, "--peers-secret-file", j.secret,
	}
	return append(append(args, j.more...), more...)
}

// add starts rank i, or starts it again at its place.
func (j *job) add(i int, more ...string) *rank {
	j.t.Helper()
	if i == len(j.places) {
		p := newPlace(j.t, j.shm)
		p.lustre = j.lustre
		j.places = append(j.places, p)
		j.ranks = append(j.ranks, nil)
	}
	r := startWithin(j.t, j.within, j.places[i], j.flags(i, more...)...)
	j.ranks[i] = r
	if j.seed == "" {
		j.seed = gossipOf(j.t, r)
	}
	return r
}

var gossipAddr = regexp.MustCompile(`msg=joined .*gossip=(\S+)`)

// gossipOf is the address on which a rank takes part in the membership.
func gossipOf(t *testing.T, r *rank) string {
	t.Helper()
	var found []string
	until(t, "gossip address", func() bool {
		found = gossipAddr.FindStringSubmatch(r.stderr.String())
		return found != nil
	})
	return found[1]
}

// running are the ranks that have not ended.
func (j *job) running() (up []*rank) {
	for _, r := range j.ranks {
		select {
		case <-r.ended:
		default:
			up = append(up, r)
		}
	}
	return up
}

// agree waits until each running rank counts n ranks alive and all place alike.
func (j *job) agree(n int) {
	j.t.Helper()
	for _, r := range j.running() {
		until(j.t, fmt.Sprintf("%d ranks alive as %s sees it", n, r.socket), func() bool { return alive(r.ranks(j.t)) == n })
	}
	until(j.t, "one ring", func() bool {
		digests := map[uint64]bool{}
		for _, r := range j.running() {
			digests[r.peers(j.t).RingDigest] = true
		}
		return len(digests) == 1
	})
}

func alive(ranks []dht.RankStatus) (n int) {
	for _, s := range ranks {
		if s.State == "alive" && len(s.Report) > 0 {
			n++
		}
	}
	return n
}

// ask sends a command and decodes its JSON answer.
func (r *rank) ask(t *testing.T, into any, command ...string) {
	t.Helper()
	c := r.dial(t)
	defer c.Close()
	reply, err := c.Do(command...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(reply.Str, into); err != nil {
		t.Fatalf("%v: %v in %s", command, err, reply.Str)
	}
}

// ranks are all ranks of the job as r sees them.
func (r *rank) ranks(t *testing.T) (all []dht.RankStatus) {
	t.Helper()
	r.ask(t, &all, "CASCADE.RANKS")
	return all
}

// peers are r's statistics of its work with the others.
func (r *rank) peers(t *testing.T) dht.Stats {
	t.Helper()
	var s struct {
		Peers dht.Stats `json:"peers"`
	}
	r.ask(t, &s, "CASCADE.STATS")
	return s.Peers
}

func (j *job) sockets() string {
	var s []string
	for _, r := range j.ranks {
		s = append(s, r.socket)
	}
	return strings.Join(s, ",")
}

// clients are one connection to each rank.
func (j *job) clients() (all []*resp.Client) {
	for _, r := range j.ranks {
		all = append(all, r.dial(j.t))
	}
	return all
}

// hitsOf counts what a tier served on all running ranks.
func (j *job) hitsOf(tier string) (n uint64) {
	j.t.Helper()
	for _, r := range j.running() {
		n += tierHits(r.stats(j.t), tier)
	}
	return n
}

func tierHits(s cascade.Stats, name string) uint64 {
	for _, t := range s.Tiers {
		if t.Name == name {
			return t.Hits
		}
	}
	return 0
}

// marks are values of known bytes that a test puts on one rank.
type marks struct {
	prefix string
	n      int
}

const markBytes = 20 << 10

func (m marks) key(i int) string   { return fmt.Sprintf("%s-%d", m.prefix, i) }
func (m marks) value(i int) []byte { return content(m.key(i), 1, markBytes) }

// put stores them all through one client.
func (m marks) put(t *testing.T, c *resp.Client) {
	t.Helper()
	for i := range m.n {
		if err := c.Set(m.key(i), m.value(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// found reads them all and returns how many are there. Wrong bytes fail the test.
func (m marks) found(t *testing.T, c *resp.Client) (n int) {
	t.Helper()
	for i := range m.n {
		if got, ok := value(t, c, m.key(i)); !ok {
			continue
		} else if string(got) != string(m.value(i)) {
			t.Errorf("%s has %d wrong bytes", m.key(i), len(got))
		}
		n++
	}
	return n
}

// everywhere waits until each client finds them all.
func (m marks) everywhere(t *testing.T, clients ...*resp.Client) {
	t.Helper()
	for i, c := range clients {
		n := 0
		until(t, fmt.Sprintf("%d values of %s from client %d", m.n, m.prefix, i), func() bool { n = m.found(t, c); return n == m.n || t.Failed() })
	}
}
