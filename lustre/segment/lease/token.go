package lease

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Times of ownership; docs/format.md §1.10 has the reasons.
const (
	RenewEvery = time.Minute
	TrustFor   = 5 * time.Minute // after the begin of a renewal
	SilentFor  = 8 * time.Minute // then a run has ended: more than trustFor, for a write that is under way
	ClockSlack = time.Hour       // more than the clocks of two nodes are apart
)

// Token names the owner of an incarnation's directory. It is the name of a file
// there.
type Token struct {
	Owner   uint64 // incarnation of the run
	Closed  bool   // that run has ended in good order
	Renewed int64  // Unix seconds, of the run's clock
	Process Process
}

// maxRenewed has 12 digits.
const maxRenewed = 999_999_999_999

// String is the name of its file.
func (t Token) String() string {
	word := "alive"
	if t.Closed {
		word = "closed"
	}
	p := t.Process
	return fmt.Sprintf("%s.%016x.%d.%x.%d.%d.%d.%s", word, t.Owner, t.Renewed, p.Boot, p.Space, p.ID, p.Start, p.Host)
}

// ParseToken is the inverse of String; false for any other name.
func ParseToken(name string) (t Token, ok bool) {
	part := strings.SplitN(name, ".", 8)
	if len(part) != 8 || part[0] != "alive" && part[0] != "closed" || len(part[3]) != 2*len(t.Process.Boot) {
		return Token{}, false
	}
	t.Closed = part[0] == "closed"
	boot, err := hex.DecodeString(part[3])
	ok = err == nil
	copy(t.Process.Boot[:], boot)
	number := func(digits string, base int) uint64 {
		n, err := strconv.ParseUint(digits, base, 64)
		ok = ok && err == nil
		return n
	}
	t.Owner = number(part[1], 16)
	renewed := number(part[2], 10)
	t.Renewed = int64(renewed)
	t.Process.Space, t.Process.ID, t.Process.Start = number(part[4], 10), number(part[5], 10), number(part[6], 10)
	t.Process.Host = part[7]
	ok = ok && renewed <= maxRenewed && len(part[7]) <= maxHost && part[7] == cleanHost(part[7]) && t.String() == name
	if !ok {
		return Token{}, false
	}
	return t, true
}

// next is the token after a renewal at now.
func (t Token) next(now time.Time) Token {
	t.Renewed = min(max(t.Renewed+1, now.Unix()), maxRenewed)
	return t
}

// Life is the state of an owner as one look at its token shows it.
type Life string

// What a run may be.
const (
	LifeClosed Life = "closed" // it has ended in good order
	LifeGone   Life = "gone"   // its process does not exist, as this node can find out
	LifeSilent Life = "silent" // it has not renewed its token for long, by the clocks of both nodes
	LifeAlive  Life = "alive"  // none of these
)

// Life judges the owner at now.
func (t Token) Life(now time.Time) Life {
	switch {
	case t.Closed:
		return LifeClosed
	case t.Process.Gone():
		return LifeGone
	case now.Sub(time.Unix(t.Renewed, 0)) > ClockSlack:
		return LifeSilent
	}
	return LifeAlive
}

// Tokens returns those among names.
func Tokens(names []string) (all []Token) {
	for _, name := range names {
		if t, ok := ParseToken(name); ok {
			all = append(all, t)
		}
	}
	return all
}
