package holdings

import (
	"cascadekv/cascade"
	"cascadekv/internal/handover"
)

// Save adds views, stages and pins to what another program gets of a connection, and
// their claims to those of st.
func (h *Client) Save(st *handover.State, x *handover.Conn) {
	x.LastHeld = h.last
	claim := func(offset, size int64, crc uint32, stage bool) uint32 {
		st.Claims = append(st.Claims, handover.Claim{Offset: offset, Size: size, CRC: crc, Stage: stage})
		return uint32(len(st.Claims) - 1)
	}
	for n, v := range h.views {
		_, offset, _ := v.File()
		x.Views = append(x.Views, handover.View{Number: n, Claim: claim(offset, v.Size(), v.CRC(), false), Tier: v.Tier()})
	}
	for n, sg := range h.stages {
		_, offset, _ := sg.File()
		x.Stages = append(x.Stages, handover.Stage{Number: n, Claim: claim(offset, int64(len(sg.Bytes())), 0, true)})
	}
	for k, v := range h.pins {
		p := handover.Pin{Namespace: k.ns, Key: k.key, Claim: handover.NoClaim}
		if _, offset, ok := v.File(); ok {
			p.Claim = claim(offset, v.Size(), v.CRC(), false)
		}
		x.Pins = append(x.Pins, p)
	}
}

// Claims is what Restore needs of a store: *cascade.Claims.
type Claims interface {
	View(claim int, tier string) *cascade.View
	Stage(claim int) *cascade.Stage
}

// Restore takes over the views, stages and pins that another program saved, but for
// pins without a claim; false when one of them could not be kept.
func (h *Client) Restore(claims Claims, x *handover.Conn) bool {
	view := func(n uint32, tier string) *cascade.View {
		v := claims.View(int(n), tier)
		if v != nil {
			h.Budget.used.Add(Size(v.Size()))
		}
		return v
	}
	h.last = x.LastHeld
	whole := true
	for _, v := range x.Views {
		if held := view(v.Claim, v.Tier); held != nil {
			h.putView(v.Number, held)
		} else {
			whole = false
		}
	}
	for _, p := range x.Pins {
		if p.Claim == handover.NoClaim {
			continue
		}
		if held := view(p.Claim, ""); held != nil {
			h.putPin(pinned{p.Namespace, p.Key}, held)
		} else {
			whole = false
		}
	}
	for _, sg := range x.Stages {
		if held := claims.Stage(int(sg.Claim)); held != nil {
			h.Budget.used.Add(Size(int64(len(held.Bytes()))))
			h.putStage(sg.Number, held)
		} else {
			whole = false
		}
	}
	return whole
}
