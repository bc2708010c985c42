package args

import (
	"math"
	"strconv"
	"time"

	"cascadekv/cascade"
	"cascadekv/gpu/direct"
	"cascadekv/internal/block"
	"cascadekv/internal/transfer"
)

// ParsePut reads the whole of CASCADE.PUT; ns is the namespace unless it names one.
func ParsePut(args [][]byte, ns string, now time.Time) (e cascade.Entry, bad string) {
	e = cascade.Entry{Namespace: ns, Key: string(args[1])}
	o := options{rest: args[3:], now: now}
	for o.next() {
		switch o.word {
		case "PREFIX":
			e.Prefix = true
		case "GENERATED":
			e.Generated = true
		case "BOUND":
			e.Bound = true
		case "NS":
			e.Namespace = o.value()
		case "PARENT":
			e.Parent = o.value()
		case "PX":
			e.Expires = o.expiry()
		default:
			o.fail(Syntax)
		}
	}
	return e, o.bad
}

// maxDue bounds DUE.
const maxDue = 24 * time.Hour

// hint reads the word that is next if it is one of hints, of any command, and reports whether it is.
func (o *options) hint(h *cascade.Hint) bool {
	switch o.word {
	case "SHARED":
		h.Shared = int(min(o.number(), math.MaxInt32))
	case "DUE":
		h.Due = o.milliseconds(maxDue)
		h.Soon = h.Due == 0
	default:
		return false
	}
	return true
}

// ParseHint reads HINT's words behind the namespace.
func ParseHint(args [][]byte) (h cascade.Hint, keys [][]byte, bad string) {
	o, given := options{rest: args}, false
	for o.next() {
		switch {
		case o.word == "KEYS" && len(o.rest) > 0 && given:
			return h, o.rest, ""
		case o.hint(&h):
			given = true
		default:
			o.fail(Syntax)
		}
	}
	o.fail(Syntax) // without keys
	return h, nil, o.bad
}

// ParseAdvise reads ADVISE's words behind the namespace. byWords reports whether they are options: if the
// first one says how long a block takes, keys follow.
func ParseAdvise(args [][]byte) (ask cascade.Ask, byWords bool, keys [][]byte, bad string) {
	if d, ok := BlockTime(args[0]); ok {
		return cascade.Ask{PerBlock: d}, false, args[1:], ""
	}
	ask.PerBlock = cascade.Learned
	o := options{rest: args}
	for o.next() {
		switch {
		case o.word == "KEYS" && len(o.rest) > 0:
			return ask, true, o.rest, ""
		case o.word == "BLOCK":
			d, ok := BlockTime([]byte(o.value()))
			if ask.PerBlock = d; !ok {
				o.fail(Number)
			}
		case o.word == "PREFILL":
			ask.Rate = o.rate()
		case o.hint(&ask.Hint):
		case len(o.rest) == len(args)-1:
			o.fail(Number)
		default:
			o.fail(Syntax)
		}
	}
	o.fail(Syntax) // without keys
	return ask, true, nil, o.bad
}

// ParseLayout reads LAYOUT's words behind the namespace. What is left out is not known.
func ParseLayout(args [][]byte) (l block.Layout, bad string) {
	o := options{rest: args}
	for o.next() {
		switch o.word {
		case "BYTES":
			l.Bytes = o.number()
		case "KEYBYTES":
			l.KeyBytes = o.number()
		case "TOKENS":
			l.Tokens = o.number32()
		case "LAYERS":
			l.Layers = o.number32()
		case "HEADS":
			l.Heads = o.number32()
		case "HEADDIM":
			l.HeadDim = o.number32()
		case "DTYPE":
			l.DType = o.value()
		default:
			o.fail(Syntax)
		}
	}
	return l, o.bad
}

// Commit are COMMIT's words behind the key.
type Commit struct {
	Entry  cascade.Entry
	CRC    uint32 // of the bytes, by the client's account
	Summed bool   // CRC is given
}

// Parse reads COMMIT's words behind the key.
func (c *Commit) Parse(args [][]byte, now time.Time) (bad string) {
	o := options{rest: args, now: now}
	for o.next() {
		switch o.word {
		case "PREFIX":
			c.Entry.Prefix = true
		case "GENERATED":
			c.Entry.Generated = true
		case "PARENT":
			c.Entry.Parent = o.value()
		case "PX":
			c.Entry.Expires = o.expiry()
		case "CRC32C":
			crc, err := strconv.ParseUint(o.value(), 10, 32)
			if err != nil {
				o.fail(Number)
			}
			c.CRC, c.Summed = uint32(crc), true
		default:
			o.fail(Syntax)
		}
	}
	return o.bad
}

// ParseTransfer reads what follows the extents of a STORE or LOAD. o.Job is -1 for
// none.
func ParseTransfer(args [][]byte, store bool, now time.Time) (t transfer.Options, keys [][]byte, bad string) {
	t.Job = -1
	o := options{rest: args, now: now}
	for o.next() {
		switch {
		case o.word == "KEYS" && len(o.rest) > 0 && (t.After.Word == 0 || t.Job >= 0):
			return t, o.rest, ""
		case o.word == "KEYS" && len(o.rest) > 0:
			o.fail("ERR AFTER is for jobs (JOB)")
		case o.word == "JOB":
			n, err := strconv.ParseInt(o.value(), 10, 64)
			if err != nil || n < 0 {
				o.fail("ERR a job is a number from 0 on")
			}
			t.Job = n
		case o.word == "AFTER":
			t.After.Word, t.After.Value = o.event()
		case !store:
			o.fail(Syntax)
		case o.hint(&t.Hint):
		case o.word == "CHAIN":
			t.Chain = true
		case o.word == "PREFIX":
			t.Prefix = true
		case o.word == "GENERATED":
			t.Generated = true
		case o.word == "REPLACE":
			t.Replace = true
		case o.word == "PARENT":
			t.Parent = o.value()
		case o.word == "PX":
			t.Expires = o.expiry()
		default:
			o.fail(Syntax)
		}
	}
	o.fail(Syntax) // without keys
	return t, nil, o.bad
}

// event reads a word of a ring, and a value for it.
func (o *options) event() (word int, value uint32) {
	w, err := strconv.ParseUint(o.value(), 10, 64)
	v, bad := strconv.ParseUint(o.value(), 10, 32)
	if err != nil || bad != nil || w < 1 || w > direct.Words {
		o.fail("ERR AFTER wants a word of the ring, 1 to 32, and a number of 32 bits")
	}
	return int(w), uint32(v)
}

const (
	// eventsAtOnce is how many events one answer has unless MAX is given,
	// and eventsMost is its largest value.
	eventsAtOnce = 1 << 10
	eventsMost   = 1 << 16

	// maxEventsWait bounds WAIT, as every answer comes in that time.
	maxEventsWait = 5 * time.Second
)

// Events is what EVENTS asks for.
type Events struct {
	Since uint64        // the first event's number
	Most  int           // events
	Wait  time.Duration // for one, if there is none
}

// ParseEvents reads EVENTS's arguments.
func ParseEvents(args [][]byte) (q Events, bad string) {
	q.Most = eventsAtOnce
	o := options{rest: args}
	var err error
	if q.Since, err = strconv.ParseUint(o.value(), 10, 64); err != nil {
		o.fail(Number)
	}
	for o.next() {
		switch o.word {
		case "MAX":
			q.Most = int(min(max(o.number(), 1), eventsMost))
		case "WAIT":
			q.Wait = o.milliseconds(maxEventsWait)
		default:
			o.fail(Syntax)
		}
	}
	return q, o.bad
}

const (
	// upgradeWait is how long an upgrade waits for connections to rest, and
	// maxUpgradeWait the longest that a client may ask for.
	upgradeWait    = 10 * time.Second
	maxUpgradeWait = 10 * time.Minute
)

// ParseUpgrade reads CASCADE.UPGRADE's arguments.
func ParseUpgrade(args [][]byte) (binary string, wait time.Duration, bad string) {
	wait = upgradeWait
	o := options{rest: args}
	for o.next() {
		switch o.word {
		case "BINARY":
			binary = o.value()
		case "WAIT":
			wait = o.milliseconds(maxUpgradeWait)
		default:
			o.fail(Syntax)
		}
	}
	return binary, wait, o.bad
}
