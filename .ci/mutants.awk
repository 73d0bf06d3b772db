# Puts the mutations of `.ci/mutations.txt` into a copy of the tree, all at once. A function that has their marks gets a
# second body for each, which runs where the environment names the mutation:
#
#     fn close(&self) {
#         if crate::mutant::is("close-without-fence") {
#             ...                             the lines of the function, but for the marked statement
#         } else {
#             ...                             the lines of the function
#         }
#     }
#
#   awk -v tree=FOLDER -v words="WORD..." -f mutants.awk mutations.txt FILE...
#
# FILEs have marks; their paths are below the tree. For each row whose name or model contains one of the words, or for
# all but those of the simulator, it prints a line: its name, its model, its preemptions, its loads, its checker, with tabs between them. The head
# of `.ci/mutations.txt` explains marks and rows. A mark or a row that is wrong fails it, whatever the words are.

function fault(what) {
    printf "mutations: %s\n", what >"/dev/stderr"
    failed = 1
}

# A row of the table. `m` numbers mutations; a mutation has a row for each model.
function begin_row(   m, k) {
    if (name[number] != $1) {
        if ($1 in known) { fault($1 ": its rows do not follow each other") }
        name[++number] = $1
        known[$1] = number
    } else if (ops[number]) {
        fault($1 ": a row follows what to put")
    }
    m = number
    of_row[++rows] = m
    model[rows] = $2
    preemptions[rows] = 2
    loads[rows] = ""
    for (k = 3; k < NF; k += 2) {
        if ($k == "preemptions") { preemptions[rows] = $(k + 1) }
        else if ($k == "loads") { loads[rows] = $(k + 1) }
        else { fault($1 ": not understood: " $k) }
    }
    if (is_wanted(rows)) { wanted_m[m] = 1 }
}

function is_wanted(row,   w) {
    for (w = 1; w <= wanted_words; w++) {
        if (index(name[of_row[row]], wanted[w]) || index(model[row], wanted[w])) { return 1 }
    }
    # The simulator searches for minutes where a model needs a second: its rows run where they are asked for.
    return wanted_words == 0 && model[row] != "simulator"
}

# `delete`, `delete TEXT`, `replace TEXT with TEXT`, `later`, `put CODE` or `put` with lines of code below.
function begin_op(text,   at) {
    ops[number]++
    op = number SUBSEP ops[number]
    match(text, /^[a-z]+/)
    verb[op] = substr(text, 1, RLENGTH)
    text = substr(text, RLENGTH + 2)
    if (verb[op] == "put") {
        if (text != "") { code[op, ++codes[op]] = text }
    } else if (verb[op] == "delete" || verb[op] == "replace") {
        at = index(text " ", " with ")
        if ((verb[op] == "replace") != (at > 0)) { fault(name[number] ": `with` belongs to `replace`") }
        old[op] = at ? substr(text, 1, at - 1) : text
        new[op] = at ? substr(text, at + 6) : ""
    } else if (verb[op] != "later" || text != "") {
        fault(name[number] ": not understood: " verb[op] " " text)
    }
}

BEGIN { wanted_words = split(words, wanted, " ") }

FNR != NR { exit }
/^#/ || /^$/ { next }
/^[a-z]/ { begin_row(); next }
/^    [a-z]/ && number { begin_op(substr($0, 5)); next }
/^        / && verb[op] == "put" { code[op, ++codes[op]] = substr($0, 9); next }
{ fault("not understood: " $0) }

function indent(text) {
    match(text, /^ */)
    return RLENGTH
}

function is_comment(text) {
    return text ~ /^ *(\/\/.*)?$/
}

# The first line behind a statement, by its layout: lines that are further right belong to it, and so do those that
# begin with a bracket or an `else` below its first letter.
function behind(first,   at, left, end) {
    left = indent(line[first])
    end = first + 1
    for (at = first + 1; at <= lines; at++) {
        if (line[at] == "") { continue }
        if (indent(line[at]) < left || (indent(line[at]) == left && line[at] !~ /^ *([])}{]|else )/)) { break }
        end = at + 1
    }
    return end
}

function code_from(at) {
    while (is_comment(line[at])) { at++ }
    return at
}

# What a mark is for: the statement, and the function around it, from the line of its `fn` to the brace below that.
function mark(m, at,   k) {
    k = ++marks[m]
    first[m, k] = code_from(at)
    past[m, k] = behind(first[m, k])
    for (; at > 0; at--) {
        if (line[at] ~ /^ *(pub(\([^)]*\))? )?(async )?(unsafe )?(extern "C" )?fn / && indent(line[at]) < indent(line[first[m, k]])) { break }
    }
    for (k = at; at > 0 && line[k] !~ /\{$/; k++) { }
    if (at == 0 || (m in opens && opens[m] != k)) {
        fault(name[m] ": its marks are not in one function")
    } else if (!(m in opens)) {
        opens[m] = k
        closes[m] = behind(k) - 1
        of[k] = of[k] " " m
    }
}

# A text as a pattern that finds it in any layout.
function pattern(text,   result, token, before) {
    for (; match(text, /^ *([A-Za-z0-9_]+|.)/); text = substr(text, RLENGTH + 1)) {
        token = substr(text, 1, RLENGTH)
        gsub(/ /, "", token)
        if (result != "") { result = result ((before token) ~ /^[A-Za-z0-9_]+$/ ? "[ \n]+" : "[ \n]*") }
        before = token
        result = result (token ~ /^[A-Za-z0-9_]/ ? token : (token == "^" ? "\\^" : "[" token "]"))
    }
    return result
}

# The marked statement with its text replaced, which it has once.
function replaced(m, k,   at, text, found) {
    for (at = first[m, k]; at < past[m, k]; at++) { text = text line[at] "\n" }
    found = pattern(old[m, k])
    if (!match(text, found)) {
        fault(name[m] ": the marked statement has no `" old[m, k] "`")
        return ""
    }
    at = RSTART + RLENGTH
    text = substr(text, 1, RSTART - 1) new[m, k] substr(text, at)
    if (match(substr(text, RSTART + length(new[m, k])), found)) {
        fault(name[m] ": the marked statement has `" old[m, k] "` twice")
    }
    return text
}

# What stands where the k-th mark of a mutation is; `next_line` is where the function goes on.
function broken(m, k,   result, at, n, from) {
    next_line = past[m, k]
    if (verb[m, k] == "later") {
        from = code_from(next_line)
        for (at = from; at < behind(from); at++) { result = result line[at] "\n" }
        next_line = at
        for (at = first[m, k]; at < past[m, k]; at++) { result = result line[at] "\n" }
    } else if (verb[m, k] == "put") {
        for (n = 1; n <= codes[m, k]; n++) {
            if (code[m, k, n] !~ /^ *\.\.\.$/) {
                result = result code[m, k, n] "\n"
                continue
            }
            for (at = first[m, k]; at < past[m, k]; at++) { result = result line[at] "\n" }
        }
    } else if (old[m, k] != "") {
        result = replaced(m, k)
    }
    return result
}

function body_of(m,   result, at, k) {
    k = 1
    for (at = opens[m] + 1; at < closes[m];) {
        if (k <= marks[m] && at == first[m, k]) {
            result = result broken(m, k++)
            at = next_line
        } else {
            result = result line[at++] "\n"
        }
    }
    if (k <= marks[m]) { fault(name[m] ": one of its marks is inside of what another one is for") }
    return result
}

function write_bodies(opened, out,   count, all, k, m, at, text, written) {
    count = split(of[opened], all, " ")
    for (k = 1; k <= count; k++) {
        m = all[k]
        if (marks[m] != ops[m]) {
            fault(name[m] ": " marks[m] " marks and " ops[m] + 0 " lines of what to do with them")
            continue
        }
        text = body_of(m)
        if (m in wanted_m) {
            printf "%sif crate::mutant::is(\"%s\") {\n%s", (written++ ? "} else " : ""), name[m], text >out
        }
    }
    if (written) { print "} else {" >out }
    for (at = opened + 1; at < closes[m]; at++) { print line[at] >out }
    if (written) { print "}" >out }
    return closes[m]
}

function mutate(path,   at, m) {
    delete of
    delete opens
    lines = 0
    while ((getline line[lines + 1] <path) > 0) { lines++ }
    close(path)
    for (at = 1; at <= lines; at++) {
        if (line[at] !~ /^ *\/\/ Mutation: /) { continue }
        m = line[at]
        sub(/.*\/\/ Mutation: /, "", m)
        if (!(m in known)) {
            fault(path ": no row for the mark " m)
        } else if (marks[known[m]] && !(known[m] in opens)) {
            fault(m ": its marks are not in one function")
        } else {
            mark(known[m], at)
        }
    }
    for (at = 1; at <= lines; at++) {
        print line[at] >path
        if (at in of) {
            at = write_bodies(at, path)
            print line[at] >path
        }
    }
    close(path)
}

END {
    for (m = 2; m < ARGC; m++) { mutate(tree "/" ARGV[m]) }
    for (m = 1; m <= number; m++) {
        if (!marks[m]) { fault(name[m] ": no mark in the sources") }
    }
    if (failed) { exit 1 }
    for (row = 1; row <= rows; row++) {
        if (!is_wanted(row)) { continue }
        printf "%s\t%s\t%s\t%s\t%s\n", name[of_row[row]], model[row], preemptions[row], loads[row], \
            (model[row] ~ /^shuttle_/ ? "shuttle" : model[row] == "simulator" ? "simulator" : "loom")
    }
}
