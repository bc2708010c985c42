// Package hostlist reads and writes lists of hosts as Slurm does: "nid[001-004,007]"
// is five hosts, and "login,rack[1-2]node[3-4]" is login and four more.
//
// A list is hosts with commas or white space between them. A host is text and
// brackets with numbers and ranges of numbers; several brackets stand for all
// combinations, in Slurm's order. A range has the width of its first
// number: "[08-10]" is 08, 09 and 10. Hosts keep their order, and one that is named
// twice is there twice. Brackets inside brackets are refused, as by Slurm.
//
// A list may come from anywhere: what Expand returns is bounded, whatever a few
// bytes ask for. The package looks no host up, and does not know which hosts exist.
package hostlist
