# Puts the mutations of `.ci/mutations.txt` into a copy of the tree, all at once. A function that one of them breaks
# gets a second body, which runs where the environment names the mutation:
#
#     fn close(&self) {
#         if crate::mutant::is("close-without-fence") {
#             ...                             the lines of the function, with those of the mutation
#         } else {
#             ...                             the lines of the function
#         }
#     }
#
#   awk -v tree=FOLDER -v words="WORD..." -f mutants.awk mutations.txt
#
# For each mutation whose name or model contains one of the words, or for all, it prints a line: its name, its model,
# its preemptions, its loads, its checker, and what is wrong with it, or nothing, with tabs between them.

function fail(what) {
    printf "mutations: %s\n", what >"/dev/stderr"
    failed = 1
    exit 1
}

function begin_block(called) {
    if (called !~ /^[a-z0-9-]+$/ || called in seen) {
        fail(called ": a name is small letters, digits and dashes, and used once")
    }
    seen[called] = 1
    number++
    name[number] = called
    preemptions[number] = 2
    checker[number] = "loom"
    part = "head"
}

BEGIN { part = "outside"; wanted_words = split(words, wanted, " ") }

part == "outside" && /^mutation / { begin_block(substr($0, 10)); next }
part == "outside" && (/^#/ || /^$/) { next }
part == "head" && /^model / { model[number] = substr($0, 7); next }
part == "head" && /^file / { file[number] = substr($0, 6); next }
part == "head" && /^preemptions / { preemptions[number] = substr($0, 13); next }
part == "head" && /^loads exchanges$/ { loads[number] = "exchanges"; next }
part == "head" && /^checker (loom|shuttle)$/ { checker[number] = substr($0, 9); next }
part == "head" && /^find$/ { part = "find"; next }
part == "find" && /^replace$/ { part = "replace"; next }
part == "find" { find[number, ++finds[number]] = $0; next }
part == "replace" && /^end$/ { part = "outside"; next }
part == "replace" { put[number, ++puts[number]] = $0; next }
{ fail("not understood: " $0) }

function is_wanted(m,   w) {
    for (w = 1; w <= wanted_words; w++) {
        if (index(name[m], wanted[w]) || index(model[m], wanted[w])) { return 1 }
    }
    return wanted_words == 0
}

function indent(text) {
    match(text, /^ */)
    return RLENGTH
}

# Where the lines of a mutation begin; 0, with what is wrong, where that is not one place.
function place(m,   at, k) {
    for (at = 1; at + finds[m] - 1 <= lines; at++) {
        for (k = 1; k <= finds[m] && line[at + k - 1] == find[m, k]; k++) { }
        if (k <= finds[m]) { continue }
        if (first[m]) {
            wrong[m] = "the lines occur more than once in " file[m]
            return 0
        }
        first[m] = at
    }
    if (!first[m]) { wrong[m] = "the lines do not occur in " file[m] }
    return first[m]
}

# The function around the lines of a mutation, by its layout: from the line of its `fn` to the brace below that.
function around(m,   least, at, k) {
    least = 1000
    for (k = 1; k <= finds[m]; k++) {
        if (find[m, k] != "" && indent(find[m, k]) < least) { least = indent(find[m, k]) }
    }
    for (at = first[m]; at > 0; at--) {
        if (line[at] ~ /^ *(pub(\([^)]*\))? )?(unsafe )?(extern "C" )?fn / && indent(line[at]) < least) { break }
    }
    for (k = at; at > 0 && k < first[m] && line[k] !~ /\{$/; k++) { }
    for (last = k + 1; last <= lines && !(line[last] ~ /^ *\}$/ && indent(line[last]) == indent(line[at])); last++) { }
    if (at == 0 || k >= first[m] || last < first[m] + finds[m]) {
        wrong[m] = "the lines are not inside of a function of " file[m]
        return
    }
    opens[m] = k
    closes[m] = last
    of[k] = of[k] " " m
}

function write_body(opened,   count, all, k, m, at, n) {
    count = split(of[opened], all, " ")
    for (k = 1; k <= count; k++) {
        m = all[k]
        printf "%sif crate::mutant::is(\"%s\") {\n", (k > 1 ? "} else " : ""), name[m] >out
        for (at = opened + 1; at < first[m]; at++) { print line[at] >out }
        for (n = 1; n <= puts[m]; n++) { print put[m, n] >out }
        for (at = first[m] + finds[m]; at < closes[m]; at++) { print line[at] >out }
    }
    print "} else {" >out
    for (at = opened + 1; at < closes[m]; at++) { print line[at] >out }
    print "}" >out
    return closes[m]
}

function mutate(path,   m, at) {
    delete of
    lines = 0
    while ((getline line[lines + 1] <(tree "/" path)) > 0) { lines++ }
    close(tree "/" path)
    for (m = 1; m <= number; m++) {
        if (file[m] == path && is_wanted(m) && place(m)) { around(m) }
    }
    out = tree "/" path
    for (at = 1; at <= lines; at++) {
        print line[at] >out
        if (at in of) {
            at = write_body(at)
            print line[at] >out
        }
    }
    close(out)
}

END {
    if (failed) { exit 1 }
    if (part != "outside") { fail("the table ends inside the block of " name[number]) }
    for (m = 1; m <= number; m++) {
        if (!is_wanted(m)) { continue }
        if (!model[m] || !file[m] || !finds[m]) {
            wrong[m] = "model, file and find must be given"
        } else if (!(file[m] in done)) {
            done[file[m]] = 1
            mutate(file[m])
        }
    }
    for (m = 1; m <= number; m++) {
        if (is_wanted(m)) {
            printf "%s\t%s\t%s\t%s\t%s\t%s\n", name[m], model[m], preemptions[m], loads[m], checker[m], wrong[m]
        }
    }
}
