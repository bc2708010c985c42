package tunerbench

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/resp"
)

// chains are all chains of a workload for a rank, by number: those of the
// warm-up, then those of the requests. A chain may share its head with an earlier
// one, and that with another.
type chains struct {
	heads     []Request // by the number of the chain
	size      int       // bytes of a block
	perChain  int       // blocks
	perLookup int       // look-ups of one name for each request
}

// stored returns the chain under whose number block i of a chain was stored.
func (c *chains) stored(chain int64, i int) int64 {
	for i < c.heads[chain].Cached {
		chain = c.heads[chain].Prefix
	}
	return chain
}

// key is the name of a block: as long as a hash that engines use, and in no order.
func (c *chains) key(chain int64, i int) string {
	h := hashOf(c.stored(chain, i), i)
	more := hashOf(int64(binary.LittleEndian.Uint64(h[:])>>24), i)
	return hex.EncodeToString(append(h[:], more[:]...))
}

// value fills p with the bytes of a block, which no other has.
func (c *chains) value(p []byte, chain int64, i int) {
	chain = c.stored(chain, i)
	kit.FillRandom(p, rand.NewPCG(uint64(chain), uint64(i)))
	kit.Stamp(p, uint64(chain)<<20|uint64(i))
}

// served counts what requests did. Counts are blocks, or names.
type served struct {
	Requests int `json:"requests"`
	Probed   int `json:"probed"`   // names of chains that were probed
	Lookups  int `json:"lookups"`  // of one name, present and absent alike
	Loaded   int `json:"loaded"`   // and compared with what was stored
	Stored   int `json:"stored"`   // puts
	Missed   int `json:"missed"`   // stored before, and not found or not served
	Rejected int `json:"rejected"` // puts that found no room
}

func (s *served) add(more served) {
	s.Requests += more.Requests
	s.Probed += more.Probed
	s.Lookups += more.Lookups
	s.Loaded += more.Loaded
	s.Stored += more.Stored
	s.Missed += more.Missed
	s.Rejected += more.Rejected
}

// operations is how many blocks and names were asked for or put.
func (s served) operations() int { return s.Probed + s.Lookups + s.Loaded + s.Stored + s.Rejected }

// chainConn is a connection that serves requests of chains on a rank. One goroutine uses
// it.
type chainConn struct {
	*chains
	client *resp.Client
	values []byte // of one request, outside the Go heap
	done   served
}

// namespace is where a connection's commands without a namespace go.
const namespace = "redis/0"

func (c *chains) dial(socket string) (*chainConn, error) {
	client, err := resp.Dial("unix", socket, answerWait)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	values, err := kit.Map(c.perChain * c.size)
	if err != nil {
		_ = client.Close() // nothing was sent
		return nil, err
	}
	return &chainConn{chains: c, client: client, values: values}, nil
}

func (c *chainConn) close() error {
	_ = c.client.Close() // nothing was left to say on it
	return unix.Munmap(c.values)
}

// serve does what an engine does with a prompt: it probes the chain, looks some
// names up, loads the head that is stored, and stores the rest. Error:
// kit.ErrWrong, and those of the connection.
func (c *chainConn) serve(r Request) error {
	keys := make([]string, r.Blocks)
	for i := range keys {
		keys[i] = c.key(r.Sequence, i)
	}
	c.done.Requests++
	hits, err := c.probe(r, keys)
	if err == nil && r.Cached > 0 {
		err = c.lookups(r, keys)
	}
	if err == nil && hits > 0 {
		err = c.load(r, keys[:hits])
	}
	if err == nil {
		err = c.store(r, keys)
	}
	if err != nil {
		return fmt.Errorf("chain %d, %d of %d blocks stored before: %w", r.Sequence, r.Cached, r.Blocks, err)
	}
	return nil
}

// probe returns how many leading blocks of the chain are stored.
func (c *chainConn) probe(r Request, keys []string) (int, error) {
	reply, err := c.client.Do(append([]string{"CASCADE.PROBE", namespace}, keys...)...)
	if err != nil {
		return 0, err
	}
	hits := int(reply.Field("hits").Int)
	if hits > r.Cached {
		return 0, fmt.Errorf("%w: a probe finds %d blocks, more than were stored", kit.ErrWrong, hits)
	}
	c.done.Probed += len(keys)
	c.done.Missed += r.Cached - hits
	return hits, nil
}

// lookups asks for single names: every other one is stored, and the rest never will
// be. EXISTS and CASCADE.CONTAINS take turns.
func (c *chainConn) lookups(r Request, keys []string) error {
	draw := rand.New(rand.NewPCG(20, uint64(r.Sequence)))
	for i := range c.perLookup {
		key := keys[draw.IntN(r.Cached)]
		if i%2 == 1 {
			key = "absent" + key[:len(key)-len("absent")]
		}
		if i%4 < 2 {
			c.client.Send("EXISTS", key)
		} else {
			c.client.Send("CASCADE.CONTAINS", namespace, key)
		}
	}
	if err := c.client.Flush(); err != nil {
		return err
	}
	for i := range c.perLookup {
		reply, err := c.client.Receive()
		if err != nil {
			return err
		}
		found := reply.Int == 1 || len(reply.Str) == 1 && reply.Str[0] == 1
		switch {
		case found && i%2 == 1:
			return fmt.Errorf("%w: a name is found that nobody stored", kit.ErrWrong)
		case !found && i%2 == 0:
			c.done.Missed++
		}
		c.done.Lookups++
	}
	return nil
}

// load reads the head of a chain at once and compares every byte.
func (c *chainConn) load(r Request, keys []string) error {
	reply, err := c.client.Do(append([]string{"MGET"}, keys...)...)
	if err != nil {
		return err
	}
	if len(reply.Elems) != len(keys) {
		return fmt.Errorf("%w: %d values of %d keys", kit.ErrWrong, len(reply.Elems), len(keys))
	}
	want := c.values[:c.size]
	for i, got := range reply.Elems {
		if got.Null() {
			c.done.Missed++
			continue
		}
		c.value(want, r.Sequence, i)
		if string(got.Str) != string(want) {
			return fmt.Errorf("%w: block %d of %d bytes", kit.ErrWrong, i, len(got.Str))
		}
		c.done.Loaded++
	}
	return nil
}

// store puts the blocks that are new, each with the one before it as its parent.
func (c *chainConn) store(r Request, keys []string) error {
	for i := r.Cached; i < r.Blocks; i++ {
		value := c.values[i*c.size:][:c.size]
		c.value(value, r.Sequence, i)
		args := []string{"CASCADE.PUT", keys[i]}
		if i > 0 {
			args = append(args, "PARENT", keys[i-1])
		}
		c.client.SendValue(2, value, args...)
	}
	if err := c.client.Flush(); err != nil {
		return err
	}
	for range r.Blocks - r.Cached {
		reply, err := c.client.Receive()
		switch {
		case err == nil:
			c.done.Stored++
		case len(reply.Str) >= 3 && string(reply.Str[:3]) == "OOM":
			c.done.Rejected++
		default:
			return err
		}
	}
	return nil
}

// growing draws the stages of a live rank: as makeStages, but what a request
// shares may be of any chain that an earlier stage stored.
func growing(rates []float64, requests, blocks int, warm int64) [][]Request {
	stages := makeStages(rates, requests, blocks, warm)
	draw := rand.New(rand.NewPCG(20, 28))
	for i, stage := range stages {
		before := warm + int64(i*requests)
		for j := range stage {
			stage[j].Prefix = draw.Int64N(before)
		}
	}
	return stages
}

// number is n for a command line.
func number[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }
