package lustretest

import (
	"fmt"
	"strings"
	"testing"

	"cascadekv/internal/testing/guest"
)

// unlimited lets a storm evict nothing.
const unlimited = "-keep=1000000000000"

// ostOf is the index of the OST that holds a segment of the campaign.
func ostOf(t *testing.T, run runner, c campaign, segment string) string {
	t.Helper()
	return strings.TrimSpace(must(t, run, fmt.Sprintf("lfs getstripe -i %s/%s", c.dir, segment)))
}

// fill takes an OST's space but for what the client holds grants for. An OST
// that is full refuses new files too.
func fill(ost string) string {
	return fmt.Sprintf(`n=0; for mib in 64 16 4 1; do while :; do
		f=/mnt/lustre/fill%[1]s.$n; n=$((n + 1))
		lfs setstripe -c 1 -i %[1]s $f || exit 0
		fallocate -l $((mib << 20)) $f 2>/dev/null || break
	done; done`, ost)
}

func other(ost string) string { return map[string]string{"0": "1", "1": "0"}[ost] }

// campaignIn makes a campaign of a test of faults.
func campaignIn(t *testing.T, m *guest.Machine) campaign {
	t.Helper()
	c := newCampaign(t, "/mnt/lustre/campaign")
	must(t, m.Run, "mkdir -m 777 "+c.dir)
	return c
}

// conclude ends a storm, looks for all that it was promised, and whether every
// request was answered in time.
func conclude(t *testing.T, m *guest.Machine, c campaign, r *running, what string) {
	t.Helper()
	s := r.finish()
	must(t, m.Run, "chown -R 0 "+c.dir) // who verifies is root, and reads no file of another user, as a storm may have been
	v := verify(t, m.Run, c)
	if why := v.sound(); why != "" {
		t.Error(why)
	}
	if why := s.inTime(); why != "" {
		t.Error(why)
	}
	if len(v.Skipped) > 0 {
		t.Logf("left out: %q", few(v.Skipped))
	}
	t.Logf("%s: %d puts durable, %d of them after a failure; %d refused, %d given up at their deadline, %d batches never stored; %d reads right, %d missed; answers at most %d ms late, %d ms but for what the guest delayed (%d ms in all); errors %v; then %v",
		what, s.Puts, s.Again, s.Refused, s.Busy, s.Dropped, s.Reads, s.Missed, s.Late, s.Overdue, s.Stood, s.Errors, &v)
	summary(t, strings.ReplaceAll(what, " ", "_"), map[string]any{"storm": s, "verdict": v})
}

// TestNoSpace fills one OST, then the other, and frees them.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	m := machine(t)
	c := campaignIn(t, m)
	r := begin(t, m.Run, c, 1, unlimited, "-reads=1")
	full := ostOf(t, m.Run, c, r.state().Segment)
	must(t, m.Run, fill(full))
	var newest string
	r.until("a segment on the other OST", func(s state) bool {
		if s.Segment == newest {
			return false
		}
		newest = s.Segment
		return ostOf(t, m.Run, c, newest) != full
	})
	r.more(20, 20, "with one OST full")
	must(t, m.Run, fill(other(full)))
	r.until("read-only mode", func(s state) bool { return s.ReadOnly })
	before := r.state()
	s := r.each(3, "with all OSTs full")
	r.more(0, 20, "with all OSTs full")
	if s.Refused == before.Refused {
		t.Error("with all OSTs full no put is refused")
	}
	must(t, m.Run, "rm -f /mnt/lustre/fill*")
	r.until("end of read-only mode", func(s state) bool { return !s.ReadOnly })
	r.more(20, 20, "with space again")
	conclude(t, m, c, r, "no space")
	then(t, m, "TestRealTwoStripes")
}

// TestQuota lets a user who is not root reach the hard limits on space and on
// files, and lifts them.
func TestQuota(t *testing.T) {
	t.Parallel()
	m := machine(t)
	must(t, m.Run, "lctl conf_param lustre.quota.ost=ugp && lctl conf_param lustre.quota.mdt=ugp")
	must(t, m.Run, "for i in $(seq 300); do [ $(lctl get_param -n osd-*.*.quota_slave.enabled | grep -c ugp) -ge 3 ] && exit 0; usleep 100000; done; lctl get_param osd-*.*.quota_slave.*; exit 1")
	c := campaignIn(t, m)
	const user = 1000
	limit := func(what string) { must(t, m.Run, fmt.Sprintf("lfs setquota -u %d %s /mnt/lustre", user, what)) }
	r := begin(t, m.Run, c, 1, unlimited, "-reads=1", fmt.Sprint("-uid=", user))
	for _, quota := range []struct{ of, limit string }{{"space", "-b 0 -B 48M -i 0 -I 0"}, {"files", "-b 0 -B 0 -i 0 -I 3"}} {
		limit(quota.limit)
		r.until("read-only mode for want of "+quota.of, func(s state) bool { return s.ReadOnly })
		r.each(3, "with no quota of "+quota.of)
		r.more(0, 20, "with no quota of "+quota.of)
		limit("-b 0 -B 0 -i 0 -I 0")
		r.more(20, 20, "with quota of "+quota.of+" again")
	}
	if !strings.Contains(fmt.Sprint(r.state().Errors), "quota exceeded") {
		t.Errorf("nothing was refused for want of quota: %v", r.state().Errors)
	}
	conclude(t, m, c, r, "quota")
	then(t, m, "TestRealQuota")
	then(t, m, "TestRealDoctor")
}

// outage is a way to take an OST away.
type outage struct {
	what, away, back string
	hangs            bool     // requests do not fail, they wait
	flags            []string // of the storm
}

// outages use %[1]s for the OST's index and %[2]s for its device.
var outages = []outage{
	{
		what: "inactive",
		away: "lctl set_param osc.lustre-OST000%[1]s-osc-[f0-9]*.active=0",
		back: "lctl set_param osc.lustre-OST000%[1]s-osc-[f0-9]*.active=1",
	},
	{what: "unmounted", away: "umount /mnt/ost%[1]s", back: "mount.lustre_tgt %[2]s /mnt/ost%[1]s", hangs: true},
	{ // so long that all threads would be used up if each request cost one
		what: "unmounted for long", away: "umount /mnt/ost%[1]s", back: "mount.lustre_tgt %[2]s /mnt/ost%[1]s", hangs: true,
		flags: []string{"-readers=6", "-writers=4"},
	},
}

// TestOSTAway takes away the OST that is being written to, and brings it back.
// While it is away every request is answered, puts go to the other OST, and
// what lies there is read.
func TestOSTAway(t *testing.T) {
	t.Parallel()
	m := machine(t)
	for number, o := range outages {
		t.Run(o.what, func(t *testing.T) { o.of(t, m, number) })
	}
}

func (o outage) of(t *testing.T, m *guest.Machine, number int) {
	c := newCampaign(t, "/mnt/lustre/"+strings.ReplaceAll(o.what, " ", "-"))
	r := begin(t, m.Run, c, number, append(o.flags, "-reads=1", "-deadline=2s", "-workers=4")...)
	ost := ostOf(t, m.Run, c, r.state().Segment)
	device := map[string]string{"0": "/dev/ubdc", "1": "/dev/ubdd"}[ost] // as boot.sh of the guest has them
	before := r.state()
	must(t, m.Run, fmt.Sprintf(o.away+" # %[2]s", ost, device))
	must(t, m.Run, "echo 1 >/proc/sys/vm/drop_caches") // what lies there is not read from memory
	r.each(3, "with an OST away")
	during := r.more(20, 20, "with an OST away")
	if before.Refused+before.Busy+before.Missed == during.Refused+during.Busy+during.Missed {
		t.Error("nobody noticed that an OST was away")
	}
	hung := during.Busy + during.BusyReads - before.Busy - before.BusyReads
	stuck := strings.TrimSpace(must(t, m.Run, "cat /proc/[0-9]*/task/[0-9]*/stat 2>/dev/null | grep -c '^[0-9]* (self.test) D'; true"))
	t.Logf("%d requests hang and were given up, %s threads are in state D; meanwhile %d puts and %d reads were done",
		hung, stuck, during.Puts-before.Puts, during.Reads-before.Reads)
	if o.hangs && hung == 0 {
		t.Error("no request hangs: this was no outage")
	}
	must(t, m.Run, fmt.Sprintf(o.back+" # %[2]s", ost, device))
	r.each(3, "with the OST back")
	r.more(20, 20, "with the OST back")
	conclude(t, m, c, r, "OST "+o.what)
}

// TestEviction has each server in turn evict the client under load.
func TestEviction(t *testing.T) {
	t.Parallel()
	m := machine(t)
	c := campaignIn(t, m)
	r := begin(t, m.Run, c, 1, "-reads=1")
	for range 3 {
		for _, server := range []string{"obdfilter.lustre-OST0000", "obdfilter.lustre-OST0001", "mdt.lustre-MDT0000"} {
			must(t, m.Run, fmt.Sprintf("lctl set_param -n %s.evict_client=$(lctl get_param -n llite.*.uuid)", server))
			r.more(20, 20, "after an eviction by "+server)
		}
	}
	if s := r.state(); s.Refused+s.Missed+s.Again == 0 {
		t.Error("no request noticed an eviction")
	}
	conclude(t, m, c, r, "eviction")
}
