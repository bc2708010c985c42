// Package campaigns has the verbs on what lies on Lustre: segments, fsck, export and
// import work on a campaign's directory, lustre plan and lustre show on how its files
// are striped. They need no rank to be running; what they do is in the packages
// lustre/campaign and lustre/layout.
//
// The package does not know the other verbs: the program that has it passes what they
// share in a Tool.
package campaigns
