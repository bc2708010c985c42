package server

import (
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
)

// cmdCascadeStage gives room in the arena for blocks that the client fills.
func cmdCascadeStage(c *conn, args [][]byte) {
	sizes, ok := parseNumbers(args[1:])
	if !ok {
		c.wr.Error(errNumber)
		return
	}
	if _, ok := c.srv.opt.Store.Arena(); !ok {
		c.wr.Error(errNoArena)
		return
	}
	ctx, cancel := c.context()
	defer cancel()
	c.wr.Array(len(sizes))
	for _, size := range sizes {
		if !c.held.budget.take(size) {
			c.wr.Null()
			continue
		}
		st, err := c.srv.opt.Store.StageShared(ctx, size)
		if err != nil {
			c.held.budget.giveBack(size)
			c.wr.Null()
			continue
		}
		_, offset, _ := st.File()
		c.wr.Array(2)
		c.wr.Int(c.held.addStage(st))
		c.wr.Int(offset)
	}
}

// cmdCascadeCommit publishes a stage as it is now, and ends it in any case.
func cmdCascadeCommit(c *conn, args [][]byte) {
	number, err := strconv.ParseInt(string(args[1]), 10, 64)
	if err != nil {
		c.wr.Error(errNumber)
		return
	}
	st := c.held.takeStage(number)
	if st == nil {
		c.wr.Error("ERR no such stage on this connection")
		return
	}
	defer st.Abort()
	o := commitOptions{entry: cascade.Entry{Namespace: string(args[2]), Key: string(args[3])}}
	if bad := o.parse(args[4:], time.Now()); bad != "" {
		c.wr.Error(bad)
		return
	}
	if o.summed {
		st.FilledAs(len(st.Bytes()), o.crc)
	} else {
		st.Filled(len(st.Bytes()))
	}
	ctx, cancel := c.context()
	defer cancel()
	if err := st.Commit(ctx, o.entry); err != nil {
		c.wr.Error(roomText(err))
		return
	}
	c.wr.Simple("OK")
}

// commitOptions are what COMMIT says of a stage.
type commitOptions struct {
	entry  cascade.Entry
	crc    uint32 // of the bytes, as the client says
	summed bool   // it does
}

// parse reads the words behind the key. The result is the text of an error
// reply, "" for none.
func (o *commitOptions) parse(args [][]byte, now time.Time) (bad string) {
	for i := 0; i < len(args); i++ {
		word := strings.ToUpper(string(args[i]))
		if word == "PREFIX" {
			o.entry.Prefix = true
			continue
		}
		i++
		if i == len(args) {
			return errSyntax
		}
		switch value := string(args[i]); word {
		case "PARENT":
			o.entry.Parent = value
		case "PX":
			if o.entry.Expires, bad = expiry(word, value, now); bad != "" {
				return bad
			}
		case "CRC32C":
			crc, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return errNumber
			}
			o.crc, o.summed = uint32(crc), true
		default:
			return errSyntax
		}
	}
	return ""
}

func cmdCascadeAbort(c *conn, args [][]byte) {
	c.eachNumber(args[1:], c.held.dropStage)
}
