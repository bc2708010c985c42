package args

import (
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/transfer"
)

// ParsePut reads the whole of CASCADE.PUT; ns is the namespace unless it names one.
func ParsePut(args [][]byte, ns string, now time.Time) (e cascade.Entry, bad string) {
	e = cascade.Entry{Namespace: ns, Key: string(args[1])}
	rest := args[3:]
	for i := 0; i < len(rest); i++ {
		word := strings.ToUpper(string(rest[i]))
		switch word {
		case "PREFIX":
			e.Prefix = true
			continue
		case "BOUND":
			e.Bound = true
			continue
		}
		i++
		if i == len(rest) {
			return e, Syntax
		}
		switch value := string(rest[i]); word {
		case "NS":
			e.Namespace = value
		case "PARENT":
			e.Parent = value
		case "PX":
			if e.Expires, bad = Expiry("PX", value, now); bad != "" {
				return e, bad
			}
		default:
			return e, Syntax
		}
	}
	return e, ""
}

// Commit are COMMIT's words behind the key.
type Commit struct {
	Entry  cascade.Entry
	CRC    uint32 // of the bytes, by the client's account
	Summed bool   // CRC is given
}

// Parse reads COMMIT's words behind the key.
func (o *Commit) Parse(args [][]byte, now time.Time) (bad string) {
	for i := 0; i < len(args); i++ {
		word := strings.ToUpper(string(args[i]))
		if word == "PREFIX" {
			o.Entry.Prefix = true
			continue
		}
		i++
		if i == len(args) {
			return Syntax
		}
		switch value := string(args[i]); word {
		case "PARENT":
			o.Entry.Parent = value
		case "PX":
			if o.Entry.Expires, bad = Expiry(word, value, now); bad != "" {
				return bad
			}
		case "CRC32C":
			crc, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return Number
			}
			o.CRC, o.Summed = uint32(crc), true
		default:
			return Syntax
		}
	}
	return ""
}

// ParseTransfer reads what follows the extents of a STORE or LOAD. o.Job is -1 for
// none.
func ParseTransfer(args [][]byte, store bool, now time.Time) (o transfer.Options, keys [][]byte, bad string) {
	o.Job = -1
	for i := 0; i < len(args); i++ {
		word := strings.ToUpper(string(args[i]))
		switch {
		case word == "KEYS" && i+1 < len(args):
			return o, args[i+1:], ""
		case word == "CHAIN" && store:
			o.Chain = true
			continue
		case word == "PREFIX" && store:
			o.Prefix = true
			continue
		case word == "REPLACE" && store:
			o.Replace = true
			continue
		}
		i++
		if i == len(args) {
			break
		}
		switch value := string(args[i]); {
		case word == "JOB":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return o, nil, "ERR a job is a number from 0 on"
			}
			o.Job = n
		case word == "PARENT" && store:
			o.Parent = value
		case word == "PX" && store:
			if o.Expires, bad = Expiry("PX", value, now); bad != "" {
				return o, nil, bad
			}
		default:
			return o, nil, Syntax
		}
	}
	return o, nil, Syntax
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
	var err error
	if q.Since, err = strconv.ParseUint(string(args[0]), 10, 64); err != nil {
		return q, Number
	}
	rest := args[1:]
	if len(rest)%2 != 0 {
		return q, Syntax
	}
	for i := 0; i < len(rest); i += 2 {
		n, err := strconv.ParseInt(string(rest[i+1]), 10, 64)
		if err != nil || n < 0 {
			return q, Number
		}
		switch strings.ToUpper(string(rest[i])) {
		case "MAX":
			q.Most = int(min(max(n, 1), eventsMost))
		case "WAIT":
			q.Wait = min(maxEventsWait, time.Duration(min(n, maxEventsWait.Milliseconds()))*time.Millisecond)
		default:
			return q, Syntax
		}
	}
	return q, ""
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
	if len(args)%2 != 0 {
		return "", 0, Syntax
	}
	for i := 0; i < len(args); i += 2 {
		switch value := string(args[i+1]); strings.ToUpper(string(args[i])) {
		case "BINARY":
			binary = value
		case "WAIT":
			ms, err := strconv.ParseInt(value, 10, 64)
			if err != nil || ms < 0 {
				return "", 0, Number
			}
			wait = min(maxUpgradeWait, time.Duration(min(ms, maxUpgradeWait.Milliseconds()))*time.Millisecond)
		default:
			return "", 0, Syntax
		}
	}
	return binary, wait, ""
}
