"""The data browser: `marin browse`, a local web app over the folders of a prefix.

    app        the routes and the error pages; marin/web has the server and what every request must satisfy
    roots      which paths may be opened, and opening them
    listing    directories
    kinds      what a file is, by its name
    json_view, rows, tables, text, tokens    what the viewers show
    records    experiments and steps: their records, status, what each read and who read it
    graph      an experiment's steps as a drawing
    curves     a run's metrics as drawings
    shown      how sizes, times and names are written

It reads and never writes. Everything that it shows may come from strangers: names and contents reach a page through the
template engine's escaping only, no page runs a script but our own, and nothing outside the given folders is opened.
"""
