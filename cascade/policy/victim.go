package policy

// Victim is a block that a memory level is to give up, as far as it matters where it goes.
type Victim struct {
	Demotion Demotion // of the level's policy, unless the level is the last
	Last     bool     // no level of memory lies below
	Refused  Loss     // why the one below does not take it; NoLoss: it does
	Next     bool     // the next level of memory has it
	Above    bool     // a faster level has it
	Below    bool     // files have it
	Unsynced bool     // files do not have one of its names durably yet, and the level would for as long as a node lasts
	Leased   bool     // somebody was promised that it stays readable
	Unworthy Loss     // why it is not worth its place in files; NoLoss: it is
}

// Files is what the files level takes at the moment.
type Files struct {
	There bool // there is such a level
	Up    bool // it takes writes
	Busy  bool // what is being written is colder than the victim
	Spent bool // the budget of writes is used up for now
}

// Step is what happens next to a victim.
type Step uint8

const (
	Stay  Step = iota // nothing: there is no victim
	Drop              // it leaves: its bytes are elsewhere, or are given up
	Copy              // it is copied to the next level of memory
	Write             // it waits until files have it, or what is colder
	Sync              // it waits until files have its names durably
	Keep              // it is held for those whom it was promised to
)

// Loss is why the last copy of a block is given up.
type Loss uint8

const (
	NoLoss     Loss = iota // it is not; or there are no files, and memory is all there is
	Unasked                // too few requests asked for it
	Generated              // it is of generated tokens, and only prompts are written
	OverBudget             // the budget of writes to what lies below is used up
	Refused                // what lies below takes no writes
)

// Decide says what happens to a victim, and with Drop what is lost. It goes down by one level, to the next
// one of memory, or to files where the policy says so (CASCADE Algorithm 1, lines 6 to 10), or where the next
// one refuses it or has no budget for it.
// It is dropped where a level below has it already and, in the order of their costs, where
// it is not worth a write to files, there is no budget for one, or these take none, unless memory
// below can have it. Other ranks' memory is no place for it: nothing is written there. Decide is a pure function,
// safe for concurrent use.
func Decide(v Victim, f Files) (Step, Loss) {
	step := v.step(f)
	if step != Drop || v.Next || v.Above || v.Below || !f.There && v.Refused == NoLoss {
		return step, NoLoss
	}
	switch {
	case v.Unworthy != NoLoss && f.There:
		return Drop, v.Unworthy
	case f.Up:
		return Drop, OverBudget
	case f.There:
		return Drop, Refused
	}
	return Drop, v.Refused
}

func (v Victim) step(f Files) Step {
	switch toFiles := v.Demotion == ToCold; {
	case v.Next:
		return Drop
	case v.Last || v.Refused != NoLoss:
		return v.leavesMemory(f)
	case toFiles && f.Up && v.Below && v.Unsynced:
		return Sync
	case toFiles && (v.Below || f.Up && v.Unworthy != NoLoss):
		return Drop
	case toFiles && f.Up && !f.Spent:
		return Write
	}
	return Copy
}

func (v Victim) leavesMemory(f Files) Step {
	switch {
	case f.Up && f.Busy:
		return Write
	case f.Up && v.Below && v.Unsynced:
		return Sync
	case v.Below, f.Up && v.Unworthy != NoLoss:
		return Drop
	case f.Up && !f.Spent:
		return Write
	case (f.There || v.Refused != NoLoss) && v.Leased:
		return Keep
	}
	return Drop
}
