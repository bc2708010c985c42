package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNoReuse marks a trace that has lengths only, for a purpose that needs hash
// ids. Test with errors.Is.
var ErrNoReuse = errors.New("trace: lengths only, no hash ids: nothing is known of which requests share blocks")

// Form is how a file writes its requests. docs/traces.md describes each.
type Form string

// Forms of a trace.
const (
	Mooncake Form = "mooncake" // JSON Lines, each with a whole prompt
	Aiperf   Form = "aiperf"   // the same fields; later lines of a session have a turn's new tokens only
	Azure    Form = "azure"    // CSV of the Azure LLM inference traces: lengths only
	BurstGPT Form = "burstgpt" // CSV of BurstGPT: lengths only
)

// Forms lists all forms.
func Forms() []Form { return []Form{Mooncake, Aiperf, Azure, BurstGPT} }

// LengthsOnly reports whether requests of the form have no hash ids.
func (f Form) LengthsOnly() bool { return f == Azure || f == BurstGPT }

// recognise returns the form of which the first line is. What is none of the
// others is taken for Mooncake's, whose parser says what is wrong with it.
func recognise(in *bufio.Reader) Form {
	start, _ := in.Peek(in.Size()) // a read error comes again
	line, _, _ := bytes.Cut(bytes.TrimLeft(start, " \t\r\n"), []byte("\n"))
	for _, f := range []Form{Azure, BurstGPT} {
		if _, missing := newTable(f, string(line)); missing == "" {
			return f
		}
	}
	var first map[string]json.RawMessage
	if json.Unmarshal(line, &first) == nil && first[fields[fieldSession]] != nil && first[fields[fieldGroup]] != nil {
		return Aiperf
	}
	return Mooncake
}

// maxBlocks bounds the prompt that a session's lines may add up to.
const maxBlocks = 1 << 22

// extend makes a whole prompt of a line of aiperf's form. What a session adds to
// its first prompt follows answers, which no other session has: a block there
// is named by the session, its place and how many of its tokens are set.
func (r *Reader) extend(req *Request, c *conversation) *problem {
	if len(c.first) == 0 || len(req.Hashes) > 0 && req.Hashes[0] == c.first[0] {
		c.first = append(c.first[:0], req.Hashes...)
		c.opened = req.InputTokens
		c.tokens = req.InputTokens + req.OutputTokens
		return nil
	}
	r.made.Accumulated++
	req.InputTokens += c.tokens
	if blocks(req.InputTokens, r.o.BlockTokens) > maxBlocks {
		return &problem{what: fmt.Sprintf("the session's prompt has grown to %d tokens", req.InputTokens), remedy: "correct the lengths of its lines"}
	}
	c.tokens = req.InputTokens + req.OutputTokens
	req.SharedBlocks = 0
	req.Hashes = append(req.Hashes[:0], c.first[:min(len(c.first), c.opened/r.o.BlockTokens)]...)
	name := textID(c.name)
	for i := len(req.Hashes); i < blocks(req.InputTokens, r.o.BlockTokens); i++ {
		place := uint64(i)<<32 | uint64(req.Tokens(i, r.o.BlockTokens))
		req.Hashes = append(req.Hashes, scramble(name^scramble(place+weyl)))
	}
	return nil
}
