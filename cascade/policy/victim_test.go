package policy

import "testing"

// TestDecide: what becomes of a victim, by where else it is, what it is worth and what files take.
func TestDecide(t *testing.T) {
	up, down, none := Files{There: true, Up: true}, Files{There: true}, Files{}
	busy, spent := Files{There: true, Up: true, Busy: true}, Files{There: true, Up: true, Spent: true}
	for name, c := range map[string]struct {
		v    Victim
		f    Files
		step Step
		lost Loss
	}{
		"session goes to files":                     {Victim{}, up, Write, NoLoss},
		"prefix goes to memory":                     {Victim{Demotion: ToNext}, up, Copy, NoLoss},
		"session, files take nothing":               {Victim{}, down, Copy, NoLoss},
		"session, no files":                         {Victim{}, none, Copy, NoLoss},
		"memory below has it":                       {Victim{Next: true}, up, Drop, NoLoss},
		"files have it":                             {Victim{Below: true}, up, Drop, NoLoss},
		"files have it, a prefix":                   {Victim{Below: true, Demotion: ToNext}, up, Copy, NoLoss},
		"not worth a write":                         {Victim{Unworthy: Unasked}, up, Drop, Unasked},
		"not worth a write, a prefix":               {Victim{Unworthy: Unasked, Demotion: ToNext}, up, Copy, NoLoss},
		"not worth a write, files take nothing":     {Victim{Unworthy: Unasked}, down, Copy, NoLoss},
		"memory below has it, not worth a write":    {Victim{Next: true, Unworthy: Unasked}, up, Drop, NoLoss},
		"last: goes to files":                       {Victim{Last: true}, up, Write, NoLoss},
		"last: waits for what is colder":            {Victim{Last: true, Below: true}, busy, Write, NoLoss},
		"last: not worth a write, but colder is":    {Victim{Last: true, Unworthy: Unasked}, busy, Write, NoLoss},
		"last: files have it":                       {Victim{Last: true, Below: true, Leased: true}, up, Drop, NoLoss},
		"last: files have not its name yet":         {Victim{Last: true, Below: true, Unsynced: true}, up, Sync, NoLoss},
		"last: files have not its name, down":       {Victim{Last: true, Below: true, Unsynced: true}, down, Drop, NoLoss},
		"last: not worth a write":                   {Victim{Last: true, Unworthy: Unasked}, up, Drop, Unasked},
		"last: not worth a write, a level above":    {Victim{Last: true, Unworthy: Unasked, Above: true}, up, Drop, NoLoss},
		"last: files take nothing":                  {Victim{Last: true}, down, Drop, Refused},
		"last: files take nothing, unworthy anyway": {Victim{Last: true, Unworthy: Unasked}, down, Drop, Unasked},
		"last: files take nothing, leased":          {Victim{Last: true, Leased: true}, down, Keep, NoLoss},
		"files have not its name yet":               {Victim{Below: true, Unsynced: true}, up, Sync, NoLoss},
		"files have not its name, down":             {Victim{Below: true, Unsynced: true}, down, Drop, NoLoss},
		"refused: goes to files":                    {Victim{Refused: Refused, Demotion: ToNext}, up, Write, NoLoss},
		"refused: files have it":                    {Victim{Refused: Refused, Demotion: ToNext, Below: true}, up, Drop, NoLoss},
		"refused: files have not its name yet":      {Victim{Refused: Refused, Demotion: ToNext, Below: true, Unsynced: true}, up, Sync, NoLoss},
		"refused: memory below has it":              {Victim{Refused: Refused, Demotion: ToNext, Next: true}, none, Drop, NoLoss},
		"refused: files take nothing":               {Victim{Refused: Refused, Demotion: ToNext}, down, Drop, Refused},
		"refused: files take nothing, leased":       {Victim{Refused: Refused, Demotion: ToNext, Leased: true}, down, Keep, NoLoss},
		"refused: not worth a write":                {Victim{Refused: Refused, Demotion: ToNext, Unworthy: Unasked}, up, Drop, Unasked},
		"refused: no files":                         {Victim{Refused: Refused, Demotion: ToNext}, none, Drop, Refused},
		"refused: no files, not worth a write":      {Victim{Refused: Refused, Demotion: ToNext, Unworthy: Unasked}, none, Drop, Refused},
		"refused: no files, leased":                 {Victim{Refused: Refused, Demotion: ToNext, Leased: true}, none, Keep, NoLoss},
		"refused: no files, a level above":          {Victim{Refused: Refused, Demotion: ToNext, Above: true}, none, Drop, NoLoss},
		"refused: no budget for files":              {Victim{Refused: Refused, Demotion: ToNext}, spent, Drop, OverBudget},
		"below: no budget":                          {Victim{Refused: OverBudget, Demotion: ToNext}, up, Write, NoLoss},
		"below: no budget, a session":               {Victim{Refused: OverBudget}, up, Write, NoLoss},
		"below: no budget, files have it":           {Victim{Refused: OverBudget, Demotion: ToNext, Below: true, Leased: true}, up, Drop, NoLoss},
		"below: no budget, files have no name yet":  {Victim{Refused: OverBudget, Demotion: ToNext, Below: true, Unsynced: true}, up, Sync, NoLoss},
		"below: no budget, memory below has it":     {Victim{Refused: OverBudget, Demotion: ToNext, Next: true, Leased: true}, none, Drop, NoLoss},
		"below: no budget, files are behind":        {Victim{Refused: OverBudget, Demotion: ToNext}, busy, Write, NoLoss},
		"below: no budget, nor for files":           {Victim{Refused: OverBudget, Demotion: ToNext}, spent, Drop, OverBudget},
		"below: no budget, nor for files, leased":   {Victim{Refused: OverBudget, Demotion: ToNext, Leased: true}, spent, Keep, NoLoss},
		"below: no budget, files take nothing":      {Victim{Refused: OverBudget, Demotion: ToNext}, down, Drop, Refused},
		"below: no budget, not worth a write":       {Victim{Refused: OverBudget, Demotion: ToNext, Unworthy: Unasked}, up, Drop, Unasked},
		"below: no budget, no files":                {Victim{Refused: OverBudget, Demotion: ToNext}, none, Drop, OverBudget},
		"below: no budget, no files, generated":     {Victim{Refused: OverBudget, Demotion: ToNext, Unworthy: Generated}, none, Drop, OverBudget},
		"below: no budget, no files, leased":        {Victim{Refused: OverBudget, Demotion: ToNext, Leased: true}, none, Keep, NoLoss},
		"below: no budget, no files, a level above": {Victim{Refused: OverBudget, Demotion: ToNext, Above: true}, none, Drop, NoLoss},
		"no budget":                                {Victim{}, spent, Copy, NoLoss},
		"no budget, files have it":                 {Victim{Below: true}, spent, Drop, NoLoss},
		"last: of generated tokens":                {Victim{Last: true, Unworthy: Generated}, up, Drop, Generated},
		"last: no budget":                          {Victim{Last: true}, spent, Drop, OverBudget},
		"last: no budget, leased":                  {Victim{Last: true, Leased: true}, spent, Keep, NoLoss},
		"last: no budget, a level above":           {Victim{Last: true, Above: true}, spent, Drop, NoLoss},
		"last: no budget, files have it":           {Victim{Last: true, Below: true}, spent, Drop, NoLoss},
		"last: no budget, files have not its name": {Victim{Last: true, Below: true, Unsynced: true}, spent, Sync, NoLoss},
		"last: no budget, not worth a write":       {Victim{Last: true, Unworthy: Unasked}, spent, Drop, Unasked},
		"last: no budget, what is colder is begun": {Victim{Last: true}, Files{There: true, Up: true, Busy: true, Spent: true}, Write, NoLoss},
		"last: no files":                           {Victim{Last: true}, none, Drop, NoLoss},
		"last: no files, leased":                   {Victim{Last: true, Leased: true}, none, Drop, NoLoss},
	} {
		if step, lost := Decide(c.v, c.f); step != c.step || lost != c.lost {
			t.Errorf("%s: step %d, loss %d; want %d, %d", name, step, lost, c.step, c.lost)
		}
	}
}
