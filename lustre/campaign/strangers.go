package campaign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/trust"
)

// KindOwner is a finding about a file or directory of somebody else.
const KindOwner = "owner"

// namedStrangers is how many of them are named one by one: somebody may have made
// very many.
const namedStrangers = 20

// Strangers is what lies in a campaign and belongs to somebody else: neither ranks
// nor the functions of this package read it.
type Strangers struct {
	Count int      `json:"count"`
	First []string `json:"first,omitempty"` // some of them, each with whose it is
}

// FindStrangers looks for them in the campaign. It reads directories alone.
// Errors match ErrNoCampaign.
func FindStrangers(o Options) (Strangers, error) {
	o.setDefaults()
	l, err := o.list()
	if err != nil {
		return Strangers{}, err
	}
	return l.strangers(), nil
}

// strangers counts those of a listing.
func (l *listing) strangers() (s Strangers) {
	for _, it := range l.files {
		if it.kind != isStrange {
			continue
		}
		if s.Count++; len(s.First) < namedStrangers {
			s.First = append(s.First, it.path+": "+it.err.Error())
		}
	}
	return s
}

// trusted returns whose files are read.
func (o *Options) trusted() trust.Users {
	t := trust.Users{UID: uint32(os.Geteuid()), Group: o.Group}
	if st, err := vfs.StatPath(o.Dir); err == nil {
		t.Open = st.Mode&0o002 != 0
		if t.UID == 0 { // who may look at everything looks after somebody's campaign
			t.Also = []uint32{st.UID}
		}
	}
	return t
}

// isStranger reports whether something belongs to somebody else, and marks it so.
func (o *Options) isStranger(it *item) bool {
	st, ok := it.info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	err := o.trust.Owner(vfs.Stat{UID: st.Uid, GID: st.Gid})
	if !errors.Is(err, trust.ErrRefused) {
		return false
	}
	it.kind, it.err = isStrange, err
	return true
}

// others is what the permissions of something of the campaign's group may not
// have, as those of all else: there nobody but the owner has any.
func (o *Options) others(it item) fs.FileMode {
	if st, ok := it.info.Sys().(*syscall.Stat_t); ok && o.Group != 0 && st.Gid == o.Group {
		return 0o027
	}
	return 0o077
}

// strangers reports what is not read because of whose it is.
func (r *Report) strangers() {
	named := 0
	for _, it := range r.c.listing.files {
		if it.kind != isStrange {
			continue
		}
		if named++; named <= namedStrangers {
			r.add(Problem, it.path, KindOwner, it.err.Error(), "remove it, or chown it if it is yours; of a group that shares the campaign, name the group")
		}
	}
	if more := named - namedStrangers; more > 0 {
		r.add(Problem, ".", KindOwner, fmt.Sprintf("%d more belong to others and are not read", more), "remove them; let nobody else write to the directory")
	}
}
