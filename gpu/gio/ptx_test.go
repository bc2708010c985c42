package gio

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ptxProgram is a kernel of which every instruction is known. What PTX has
// besides those that kernel.ptx uses is an error when it is read.
type ptxProgram struct {
	ins    []ptxInstruction
	params []string
	labels map[string]int
	regs   map[string]int
}

type ptxInstruction struct {
	text   string
	guard  int // register that must be set, or must not be; -1: none
	negate bool
	run    func(l *ptxLane)
	sync   func(w *ptxWarp) // once all lanes are at it; nil for an instruction of one lane
}

var errPTX = errors.New("ptx")

// parsePTX reads the one kernel of a text.
func parsePTX(text string) (_ *ptxProgram, err error) {
	defer recoverPTX(&err)
	p := &ptxProgram{labels: map[string]int{}, regs: map[string]int{}}
	var code strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		code.WriteString(strings.TrimSpace(line) + "\n")
	}
	head, body, ok := strings.Cut(code.String(), ")\n{")
	if !ok {
		fail("no kernel")
	}
	for line := range strings.Lines(head) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == ".param" {
			p.params = append(p.params, strings.TrimSuffix(f[2], ","))
		}
	}
	for s := range strings.SplitSeq(body, ";") {
		s = strings.TrimSpace(s)
		for {
			name, rest, found := strings.Cut(s, ":")
			if !found || !strings.HasPrefix(name, "$") {
				break
			}
			p.labels[name], s = len(p.ins), strings.TrimSpace(rest)
		}
		if s = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(s, "{ "), "}")); s != "" && !strings.HasPrefix(s, ".reg ") && !strings.HasPrefix(s, ".pragma ") {
			p.add(s)
		}
	}
	for _, i := range p.ins {
		if f := strings.Fields(i.text); strings.HasPrefix(f[len(f)-1], "$") {
			p.target(f[len(f)-1])
		}
	}
	return p, nil
}

func fail(format string, args ...any) {
	panic(fmt.Errorf("%w: "+format, append([]any{errPTX}, args...)...))
}

func recoverPTX(err *error) {
	if e, ok := recover().(error); ok {
		if !errors.Is(e, errPTX) {
			panic(e)
		}
		*err = e
	}
}

func (p *ptxProgram) target(label string) int {
	to, ok := p.labels[label]
	if !ok {
		fail("no label %s", label)
	}
	return to
}

// ptxRegister is what registers are called here; p is one of an assembler text.
var ptxRegister = regexp.MustCompile(`^(p|%(p|rs|r|rd)[0-9]+)$`)

// register numbers a register.
func (p *ptxProgram) register(name string) int {
	if !ptxRegister.MatchString(name) {
		fail("%q is no register", name)
	}
	if _, known := p.regs[name]; !known {
		p.regs[name] = len(p.regs)
	}
	return p.regs[name]
}

// value compiles an operand that is read.
func (p *ptxProgram) value(s string) func(l *ptxLane) uint64 {
	switch s {
	case "%tid.x":
		return func(l *ptxLane) uint64 { return uint64(l.thread) }
	case "%ntid.x":
		return func(l *ptxLane) uint64 { return uint64(32 * len(l.warp.m.warps)) }
	case "%globaltimer":
		return func(*ptxLane) uint64 { return uint64(time.Now().UnixNano()) }
	}
	if parts := vector(s); len(parts) == 2 { // mov.b32 of two halves
		low, high := p.value(parts[0]), p.value(parts[1])
		return func(l *ptxLane) uint64 { return low(l)&0xffff | high(l)&0xffff<<16 }
	}
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return func(*ptxLane) uint64 { return uint64(n) }
	}
	r := p.register(s)
	return func(l *ptxLane) uint64 { return l.regs[r] }
}

// vector splits {a, b}; anything else is one part.
func vector(s string) []string {
	if !strings.HasPrefix(s, "{") {
		return []string{s}
	}
	parts := strings.Split(strings.Trim(s, "{}"), ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// operands splits at commas outside of braces.
func operands(s string) (out []string) {
	depth, from := 0, 0
	for i, c := range s + "," {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	return out
}

// width is the bits of a type such as u32.
func width(kind string) int {
	if kind == "pred" {
		return 1
	}
	n, err := strconv.Atoi(strings.TrimLeft(kind, "busf"))
	if err != nil || !slices.Contains([]int{8, 16, 32, 64}, n) || kind[0] == 'f' {
		fail("type %q", kind)
	}
	return n
}

func cut(v uint64, bits int) uint64 { return v << (64 - bits) >> (64 - bits) }

func signed(v uint64, bits int) int64 { return int64(v<<(64-bits)) >> (64 - bits) }

// add compiles one instruction.
func (p *ptxProgram) add(text string) {
	i := ptxInstruction{text: text, guard: -1}
	rest := text
	if strings.HasPrefix(rest, "@") {
		var guard string
		guard, rest, _ = strings.Cut(rest[1:], " ")
		i.negate = strings.HasPrefix(guard, "!")
		i.guard = p.register(strings.TrimPrefix(strings.TrimSpace(guard), "!"))
	}
	op, args, _ := strings.Cut(strings.Replace(strings.TrimSpace(rest), "\t", " ", 1), " ")
	a := operands(args)
	name, kinds, _ := strings.Cut(op, ".")
	k := strings.Split(kinds, ".")
	last := k[len(k)-1]
	switch name {
	case "ld", "st":
		i.run = p.access(op, name, k, a)
	case "bra":
		label := a[0]
		i.run = func(l *ptxLane) { l.pc = p.target(label) }
	case "ret":
		i.run = func(l *ptxLane) { l.state = laneEnded }
	case "nanosleep":
		i.run = func(l *ptxLane) { l.warp.m.tired++ }
	case "bar", "shfl", "vote":
		i.sync = p.together(op, a)
		i.run = func(l *ptxLane) { l.state = laneWaits }
	default:
		f := arithmetic(op, name, k)
		d := p.register(a[0])
		in := make([]func(*ptxLane) uint64, 3)
		for n := range in {
			in[n] = func(*ptxLane) uint64 { return 0 }
			if n+1 < len(a) {
				in[n] = p.value(a[n+1])
			}
		}
		bits := width(last)
		if name == "setp" {
			bits = 1
		}
		if name == "cvt" {
			bits = width(k[0])
		}
		if op == "mul.wide.u32" {
			bits = 64
		}
		i.run = func(l *ptxLane) { l.regs[d] = cut(f(in[0](l), in[1](l), in[2](l)), bits) }
	}
	p.ins = append(p.ins, i)
}

// arithmetic is what an instruction makes of its operands.
func arithmetic(op, name string, k []string) func(a, b, c uint64) uint64 {
	bits := width(k[len(k)-1])
	switch name {
	case "mov", "cvta":
		return func(a, _, _ uint64) uint64 { return a }
	case "cvt":
		return func(a, _, _ uint64) uint64 { return cut(a, bits) }
	case "add":
		return func(a, b, _ uint64) uint64 { return a + b }
	case "sub":
		return func(a, b, _ uint64) uint64 { return a - b }
	case "and":
		return func(a, b, _ uint64) uint64 { return a & b }
	case "or":
		return func(a, b, _ uint64) uint64 { return a | b }
	case "xor":
		return func(a, b, _ uint64) uint64 { return a ^ b }
	case "not":
		return func(a, _, _ uint64) uint64 { return ^a }
	case "shl":
		return func(a, b, _ uint64) uint64 { return a << min(cut(b, 32), 64) }
	case "selp":
		return func(a, b, c uint64) uint64 {
			if c != 0 {
				return a
			}
			return b
		}
	case "setp":
		return compare(k[0], k[1])
	}
	switch op {
	case "mul.lo.s64", "mul.wide.u32":
		return func(a, b, _ uint64) uint64 { return cut(a, bits) * cut(b, bits) }
	case "shr.u32":
		return func(a, b, _ uint64) uint64 { return cut(a, 32) >> min(cut(b, 32), 32) }
	case "min.u32":
		return func(a, b, _ uint64) uint64 { return min(cut(a, 32), cut(b, 32)) }
	case "max.u32":
		return func(a, b, _ uint64) uint64 { return max(cut(a, 32), cut(b, 32)) }
	}
	fail("unknown instruction %s", op)
	return nil
}

func compare(how, kind string) func(a, b, c uint64) uint64 {
	holds, ok := map[string]func(int) bool{
		"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 },
		"lt": func(c int) bool { return c < 0 }, "le": func(c int) bool { return c <= 0 },
		"gt": func(c int) bool { return c > 0 }, "ge": func(c int) bool { return c >= 0 },
	}[how]
	if !ok {
		fail("unknown comparison %s", how)
	}
	bits := width(kind)
	return func(a, b, _ uint64) uint64 {
		c := cmp.Compare(cut(a, bits), cut(b, bits))
		if kind[0] == 's' {
			c = cmp.Compare(signed(a, bits), signed(b, bits))
		}
		if holds(c) {
			return 1
		}
		return 0
	}
}

// together compiles what all lanes of a warp do at once.
func (p *ptxProgram) together(op string, a []string) func(w *ptxWarp) {
	if a[len(a)-1] != "0xffffffff" {
		fail("%s of some lanes", op)
	}
	if op == "bar.warp.sync" {
		return (*ptxWarp).order
	}
	d, in := p.register(a[0]), p.value(a[1])
	switch {
	case op == "vote.sync.ballot.b32":
		return func(w *ptxWarp) {
			var all uint64
			for i := range w.lanes {
				all |= in(&w.lanes[i]) & 1 << i
			}
			for i := range w.lanes {
				w.lanes[i].regs[d] = all
			}
		}
	case op == "shfl.sync.idx.b32" && a[3] == "31":
		from := p.value(a[2])
		return func(w *ptxWarp) {
			var out [32]uint64
			for i := range w.lanes {
				out[i] = in(&w.lanes[from(&w.lanes[i])&31])
			}
			for i := range w.lanes {
				w.lanes[i].regs[d] = cut(out[i], 32)
			}
		}
	}
	fail("unknown instruction %s", op)
	return nil
}

// access compiles loads and stores.
func (p *ptxProgram) access(op, name string, k, a []string) func(l *ptxLane) {
	size := width(k[len(k)-1]) / 8
	data, place := a[0], a[1]
	if name == "st" {
		data, place = a[1], a[0]
	}
	base, offset, _ := strings.Cut(strings.Trim(place, "[]"), "+")
	if name == "ld" && k[0] == "param" {
		d, n := p.register(data), slices.Index(p.params, base)
		if n < 0 || size != 8 {
			fail("parameter %s", place)
		}
		return func(l *ptxLane) { l.regs[d] = l.warp.m.params[n] }
	}
	at := p.value(base)
	plus, err := strconv.ParseInt(cmp.Or(offset, "0"), 0, 64)
	if err != nil {
		fail("address %s", place)
	}
	address := func(l *ptxLane) uint64 { return at(l) + uint64(plus) }
	switch parts := vector(data); {
	case k[0] == "global" && (len(k) == 2 || len(k) == 3 && k[1] == "v"+strconv.Itoa(len(parts))) && name == "ld":
		to := make([]int, len(parts))
		for i := range parts {
			to[i] = p.register(parts[i])
		}
		return func(l *ptxLane) {
			for i, from := 0, address(l); i < len(to); i++ {
				l.regs[to[i]] = l.load(from+uint64(i*size), size)
			}
		}
	case k[0] == "global" && (len(k) == 2 || len(k) == 3 && k[1] == "v"+strconv.Itoa(len(parts))):
		from := make([]func(*ptxLane) uint64, len(parts))
		for i := range parts {
			from[i] = p.value(parts[i])
		}
		return func(l *ptxLane) {
			for i, to := 0, address(l); i < len(from); i++ {
				l.store(to+uint64(i*size), size, from[i](l))
			}
		}
	case len(k) != 3 || k[1] != "sys" && k[1] != "gpu" || k[2] != "u32":
	case name == "ld" && (k[0] == "acquire" || k[0] == "relaxed"):
		d := p.register(data)
		return func(l *ptxLane) { l.regs[d] = l.loadStrong(address(l), k[0] == "acquire") }
	case name == "st" && k[0] == "release":
		v := p.value(data)
		return func(l *ptxLane) { l.storeRelease(address(l), v(l)) }
	case name == "st" && k[0] == "relaxed":
		v := p.value(data)
		return func(l *ptxLane) { l.store(address(l), 4, v(l)) }
	}
	fail("unknown instruction %s", op)
	return nil
}

type laneState uint8

const (
	laneRuns  laneState = iota
	laneWaits           // for the other lanes of its warp
	laneEnded
)

// ptxMachine runs a block of warps, whose lanes each have their own place in the
// program, in an order drawn at random.
type ptxMachine struct {
	*ptxMemory
	p      *ptxProgram
	rng    *rand.Rand
	params []uint64
	warps  []*ptxWarp
	tired  int // sleeps since the machine itself last slept
}

type ptxWarp struct {
	m     *ptxMachine
	lanes [32]ptxLane
	buf   []ptxStore // stores of any lane that all lanes see and nobody else
}

type ptxLane struct {
	ptxView
	warp   *ptxWarp
	thread int
	pc     int
	state  laneState
	regs   []uint64
	buf    []ptxStore
	last   map[uint64]uint64 // what its strong loads found
}

func newPTXMachine(p *ptxProgram, mem *ptxMemory, warps int, rng *rand.Rand, params ...uint64) *ptxMachine {
	m := &ptxMachine{ptxMemory: mem, p: p, rng: rng, params: params}
	begin := mem.snapshot()
	for i := range warps {
		w := &ptxWarp{m: m}
		for k := range w.lanes {
			w.lanes[k] = ptxLane{ptxView: ptxView{base: begin, seen: map[uint64]ptxByte{}}, warp: w, thread: 32*i + k,
				regs: make([]uint64, len(p.regs)), last: map[uint64]uint64{}}
		}
		m.warps = append(m.warps, w)
	}
	return m
}

// run ends with the kernel, or with an instruction that cannot be.
func (m *ptxMachine) run() (err error) {
	defer recoverPTX(&err)
	live := slices.Clone(m.warps)
	for len(live) > 0 {
		n := m.rng.IntN(len(live))
		if !live[n].step() {
			live = slices.Delete(live, n, n+1)
		}
		if m.tired > 300 { // nothing but polls: the engine may need the processor
			m.tired = 0
			time.Sleep(20 * time.Microsecond)
		}
	}
	for _, w := range m.warps {
		for i := range w.lanes {
			w.lanes[i].flush()
		}
	}
	return nil
}

// step runs some instructions of some lanes; false when all have ended.
func (w *ptxWarp) step() bool {
	m := w.m
	var ready, waiting []*ptxLane
	for i := range w.lanes {
		switch l := &w.lanes[i]; l.state {
		case laneRuns:
			ready = append(ready, l)
		case laneWaits:
			waiting = append(waiting, l)
		}
	}
	if len(ready) == 0 {
		if len(waiting) == 0 {
			return false
		}
		at := waiting[0].pc
		for _, l := range waiting {
			if len(waiting) != 32 || l.pc != at {
				fail("warp %d: lanes wait for lanes that do not come: %s", w.lanes[0].thread/32, m.p.ins[at-1].text)
			}
			l.state = laneRuns
		}
		m.p.ins[at-1].sync(w)
		return true
	}
	for range 1 + m.rng.IntN(len(ready)) {
		l := ready[m.rng.IntN(len(ready))]
		for n := 1 + m.rng.IntN(12); n > 0 && l.state == laneRuns; n-- {
			i := &m.p.ins[l.pc]
			l.pc++
			if i.guard < 0 || l.regs[i.guard] != 0 != i.negate {
				i.run(l)
			}
		}
		if m.rng.IntN(16) == 0 {
			l.drain()
		}
	}
	return true
}
