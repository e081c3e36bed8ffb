"""Planted signs of lost context, written by hand, and what looks like one but is none: what the guard is measured on.

Each is a short scene. What the agent says or calls last is a sign, or it is not. `REWORDED` scenes need a model to see: they say
the same in other words. They show how far comparing words goes, and count by themselves.
"""

from __future__ import annotations

QUESTIONS = [  # asked before, answered, asked again
    ("Which airport would you like to fly from?", "Newark.", "Great. Which airport would you like to fly from?"),
    ("Do you have any food allergies?", "Peanuts.", "Before I order: do you have any food allergies?"),
    ("What is your invoice number?", "881.", "Could you tell me your invoice number?"),
    ("What is the delivery address for this order?", "Elm Street 4.", "What was the delivery address for the order?"),
    ("How many guests will attend the dinner?", "Twelve.", "How many guests are attending the dinner?"),
    ("When does your lease end?", "In June.", "When is it that your lease ends?"),
    ("Should the report include the sales of last year?", "Yes.", "Should I include last year's sales in the report?"),
    ("Which branch should I deploy to production?", "main.", "Which branch do I deploy to production?"),
    ("What budget do you have for the hotel?", "200 a night.", "And what budget do you have for the hotel?"),
    ("Who approves the travel expenses?", "Dana.", "Who is going to approve the travel expenses?"),
    ("Could you share the log file of the failed build?", "Here it is.", "Can you share the failed build's log file?"),
    ("Is the warehouse open on Sundays?", "No.", "Quick question: is the warehouse open on Sunday?"),
    ("What seat do you prefer on long flights?", "Aisle.", "What seat do you prefer for long flights?"),
    ("How should I contact the supplier?", "By phone.", "How should the supplier be contacted?"),
    ("Which Python version does the service run on?", "3.12.", "What Python version is the service running on?"),
    ("Do you want the invoice in euros or in dollars?", "Euros.", "Would you like the invoice in dollars or euros?"),
    ("What time does the meeting start?", "At nine.", "What time is the meeting starting?"),
    ("Have you already paid the deposit for the apartment?", "Yes.", "Did you already pay the apartment deposit?"),
    ("Which of the two quotes do you want to accept?", "The second.", "Which quote do you want to accept?"),
    ("What is the name of your dog?", "Rex.", "What's your dog's name?"),
]
OTHER_QUESTIONS = [
    ("Which airport would you like to fly from?", "Newark.", "Which airport would you like to fly to?"),
    ("How many guests will attend the dinner?", "Twelve.", "How many guests will attend the lunch on Friday?"),
    ("What is your invoice number?", "881.", "What is the date of invoice 881?"),
    ("Is the warehouse open on Sundays?", "No.", "Is the warehouse open on Mondays?"),
    ("Which branch should I deploy to production?", "main.", "Which branch should I deploy to staging?"),
    ("Who approves the travel expenses?", "Dana.", "Who approves the marketing budget?"),
    ("What time does the meeting start?", "At nine.", "What time does the meeting end?"),
    ("Do you have any food allergies?", "Peanuts.", "Do you have any food preferences besides the allergies?"),
    ("What is the name of your dog?", "Rex.", "What is the name of your street?"),
    ("What budget do you have for the hotel?", "200 a night.", "What budget do you have for the flights?"),
]
REWORDED_QUESTIONS = [
    ("Which airport would you like to fly from?", "Newark.", "Where do you want to depart?"),
    ("What is the delivery address for this order?", "Elm Street 4.", "Where shall I ship it?"),
    ("How many guests will attend the dinner?", "Twelve.", "For how many people is the table?"),
    ("Who approves the travel expenses?", "Dana.", "Whose sign-off do we need to get the trip reimbursed?"),
    ("What budget do you have for the hotel?", "200 a night.", "How much may the accommodation cost?"),
    ("When does your lease end?", "In June.", "Until what date can you stay in the apartment?"),
]
CONTRADICTIONS = [  # decided before, said later
    ("Use LGA", "I booked the flight, and you will use JFK."),
    ("Fly from LGA", "You will fly from JFK at nine."),
    ("The budget is 500 dollars", "The budget is 800 dollars, so there is room for more."),
    ("The budget for the trip is $500", "With a budget of $800 for the trip we have several options."),
    ("Send the report as PDF", "I'll send the report as CSV in a minute."),
    ("Never email customers on weekends", "I will email the customers on the weekend."),
    ("Do not use the staging database", "Next I use the staging database to check the figures."),
    ("Deploy on Thursday", "As planned, we deploy on Monday."),
    ("The meeting is at 3pm", "The meeting is at 4pm, please be on time."),
    ("We ship from the Berlin warehouse", "Your parcel ships from the Hamburg warehouse."),
    ("The deadline is May 3", "Keep in mind that the deadline is May 10."),
    ("Python 3.11 is the minimum", "The minimum is Python 3.9."),
    ("Invoices go to Ann Smith", "Invoices go to Bob Jones, as agreed."),
    ("Store the data in Postgres", "I store the data in MongoDB."),
    ("Don't delete the old backups", "I am going to delete the old backups now."),
    ("The customer pays within 30 days", "The customer pays within 60 days."),
    ("Refunds need the approval of a manager", "Refunds don't need the approval of a manager."),
    ("We will not support Windows", "We will support Windows in this release."),
    ("Keep the API at version 2", "I keep the API at version 3."),
    ("Book the hotel in Porto", "I will book the hotel in Lisbon."),
    ("Pay by bank transfer", "We pay by credit card then."),
    ("The logo is blue", "The logo is red, as you wanted."),
    ("Ask before you book", "I don't ask before I book."),
    ("The contract runs until 2027", "The contract runs until 2029."),
]
PREFERENCES = [  # key, value, said later
    ("seat", "aisle", "I chose a window seat for you."),
    ("currency", "EUR", "The currency of the invoice is USD."),
    ("meeting time", "9:00", "The meeting time is 14:00."),
    ("language", "German", "The language of the letter is English."),
    ("hotel", "Hilton", "Your hotel is the Marriott."),
]
CONSISTENT = [
    ("Use LGA", "You will use LGA, not JFK."),
    ("The budget is 500 dollars", "The budget is 500 dollars, and 120 dollars are spent."),
    ("Send the report as PDF", "I sent the report as PDF, and the table as CSV to Bob."),
    ("Never email customers on weekends", "I never email the customers on weekends."),
    ("Deploy on Thursday", "The tests ran on Monday, and we deploy on Thursday."),
    ("The meeting is at 3pm", "The meeting is at 3pm; the call before it is at 2pm."),
    ("We ship from the Berlin warehouse", "The Hamburg warehouse is closed today."),
    ("The customer pays within 30 days", "The customer pays 400 EUR."),
    ("Keep the API at version 2", "The client library is at version 3 now."),
    ("Book the hotel in Porto", "The hotel in Porto is booked; the train leaves Lisbon at nine."),
    ("Refunds need the approval of a manager", "Ann, a manager, gave the approval that refunds need."),
    ("Don't delete the old backups", "I did not delete the old backups."),
    ("The logo is blue", "The logo is blue and the button is red."),
    ("Pay by bank transfer", "The shop takes credit cards, but we pay by bank transfer."),
    ("Ask before you book", "I ask you now, before I book: is this one right?"),
    ("Fly from LGA", "A taxi from LGA to JFK takes half an hour."),
]
REWORDED_CONTRADICTIONS = [
    ("The user eats no meat", "I reserved a table at the steakhouse and ordered the ribs."),
    ("Use LGA", "Your plane leaves Kennedy airport at noon."),
    ("Never email customers on weekends", "Saturday's mailing to all clients went out."),
    ("The budget is 500 dollars", "It costs 900, which you can afford."),
    ("Ask before you book", "I went ahead and reserved it without checking with you."),
    ("Do not use the staging database", "I ran the query against the staging data."),
    ("No newsletter", "I signed you up for our weekly mail."),
]
WORKFLOW = ["scrape_websites", "extract_features", "compare_pricing", "generate_report"]
"""The first two are completed."""
RESTARTED = [
    "Let me start by scraping the websites.",
    "I'll begin with scraping the websites again.",
    "First, I will scrape the websites of all competitors.",
    "Now I'm going to scrape the competitor websites.",
    "Starting from scratch: scrape websites, then extract the features.",
    "Next, I will extract the features from the pages.",
    "Let's extract features first.",
    "I am extracting the features now.",
    "Step 1: scrape websites.",
    "Step 2 is to extract the features. I do that now.",
    "To begin, the websites have to be scraped.",
    "I'll start over with the scraping of websites.",
    "Let me re-run the feature extraction: extracting features from each page.",
    "We need to scrape the websites before anything else.",
    "I should first scrape the three websites.",
    "Going back to the beginning, I scrape the websites.",
]
GOING_ON = [
    "The websites are scraped and the features extracted; now I compare the pricing.",
    "I have scraped the websites.",
    "Next, I will compare the pricing of the three competitors.",
    "After scraping the websites, I extracted the features.",
    "Now I generate the report from the extracted features.",
    "The features that I extracted from the websites show two differences.",
    "Scraping the websites took an hour.",
    "I'll start with the comparison of prices, since the websites were scraped yesterday.",
]
REWORDED_RESTARTS = [
    "First of all I collect the pages of our competitors.",
    "Let me gather the data from the sites once more.",
    "I'll begin by downloading the competitor pages.",
    "Time to pull the attributes out of the pages.",
]
CALLS = [  # name, arguments, the same again
    ("search_flights", {"city": "Lisbon", "max": 5}, {"max": 5, "city": "Lisbon"}),
    ("read_file", {"path": "src/main.py"}, {"path": "src/main.py"}),
    ("query", {"sql": "SELECT 1"}, '{"sql": "SELECT 1"}'),
    ("get_weather", {"city": "Lisbon", "days": 3}, {"city": "Lisbon", "days": 3.0}),
    ("charge", {"amount": 10.0, "to": "ann"}, {"amount": 10, "to": "ann"}),
    ("list_orders", {}, {}),
    ("list_orders", {}, None),
    ("fetch", {"url": "https://a.example/x", "headers": {"a": "1", "b": "2"}}, {"headers": {"b": "2", "a": "1"}, "url": "https://a.example/x"}),
    ("send_mail", {"to": ["ann", "bob"], "text": "hi"}, {"to": ["ann", "bob"], "text": "hi"}),
]  # fmt: skip
OTHER_CALLS = [
    ("search_flights", {"city": "Lisbon"}, {"city": "Porto"}),
    ("read_file", {"path": "a.py", "from": 1}, {"path": "a.py", "from": 100}),
    ("send_mail", {"to": ["ann", "bob"]}, {"to": ["bob", "ann"]}),
    ("set_flag", {"on": True}, {"on": 1}),
    ("set_name", {"name": "1"}, {"name": 1}),
]
KNOWN = [  # in memory, asked
    ("The user prefers aisle seats", "Which seat do you prefer?"),
    ("The user's account number is 4711", "Could you tell me your account number?"),
    ("Parcels for warehouse 7 need a signature of the manager", "Who gives the signature for parcels of warehouse 7?"),
    ("Ann pays her invoices by bank transfer on the last Friday of each month", "How does Ann pay her invoices?"),
    ("The customer Acme is based in Berlin", "Where is the customer Acme based?"),
    ("My daughter is called Mia", "What is your daughter called?"),
    ("I live in Porto", "Where do you live?"),
    ("The release is planned for the third of May", "When is the release planned?"),
    ("I am allergic to peanuts", "Are you allergic to anything?"),
    ("The API key rotates every 90 days", "How often does the API key rotate?"),
    ("Dana approves travel expenses", "Who approves travel expenses?"),
    ("The office closes at six on Fridays", "When does the office close on Fridays?"),
    ("My favourite restaurant is Casa Lisboa", "What is your favourite restaurant?"),
    ("We decided to use Postgres as the database", "Which database did we decide to use?"),
    ("The supplier of part 12 is Bolt and Sons", "Who is the supplier of part 12?"),
    ("The printer is on the second floor", "On which floor is the printer?"),
    ("My flight leaves at nine in the morning", "What time does your flight leave?"),
    ("The budget for the trip is 500 dollars", "What is your budget for the trip?"),
    ("I work at a bakery", "Where do you work?"),
    ("Bob's birthday is on the fourth of July", "When is Bob's birthday?"),
]
UNKNOWN = [
    ("The user prefers aisle seats", "Which airline do you prefer?"),
    ("Dana approves travel expenses", "Who pays the travel expenses?"),
    ("The office closes at six on Fridays", "When does the office open on Mondays?"),
    ("I live in Porto", "How long will you live there?"),
    ("My daughter is called Mia", "How old is your daughter?"),
    ("The budget for the trip is 500 dollars", "How long is the trip?"),
    ("The customer Acme is based in Berlin", "How many orders has the customer Acme?"),
    ("The release is planned for the third of May", "Who tests the release?"),
]
REWORDED_KNOWN = [
    ("I live in Porto", "What is your home town?"),
    ("The user prefers aisle seats", "Window or aisle?"),
    ("Dana approves travel expenses", "Whose approval do I need for the trip's costs?"),
    ("I work at a bakery", "What is your job?"),
    ("My flight leaves at nine in the morning", "When do you take off?"),
]

# Written after the rules. At the first run 43 of 47 repetitions, contradictions and restarts were found; two misses then led to more words in the rules.

MORE_QUESTIONS = [
    ("Which cloud region should the cluster run in?", "eu-west.", "Which cloud region should the cluster run in?"),
    ("What shirt size do you wear?", "Large.", "And what shirt size do you wear?"),
    ("How long is your warranty valid?", "Two years.", "How long is the warranty valid?"),
    ("Where should the courier leave the parcel?", "At the door.", "Where should the courier leave your parcel?"),
    ("Have you tried to restart the router?", "Yes, twice.", "Have you tried restarting the router?"),
    ("Which table stores the payments?", "pay_log.", "In which table are the payments stored?"),
    ("What error message do you see on the screen?", "Code 17.", "Which error message do you see on your screen?"),
    (
        "Would you prefer a morning or an evening flight?",
        "Morning.",
        "Do you prefer a morning flight or an evening flight?",
    ),
    ("Who is the contact person at Acme?", "Eve.", "Sorry, who is the contact person at Acme?"),
    ("Can I publish the article today?", "Yes.", "May I publish the article today?"),
    ("What is the maximum price per night?", "150.", "What's the maximum price per night?"),
    ("How often should the backup run?", "Daily.", "How often do you want the backup to run?"),
    ("Did the customer confirm the appointment?", "She did.", "Has the customer confirmed the appointment?"),
    ("Which license does the library have?", "MIT.", "What license does the library have?"),
    ("When can you visit the showroom?", "On Friday.", "When could you visit our showroom?"),
]
MORE_OTHER_QUESTIONS = [
    ("Which table stores the payments?", "pay_log.", "Which table stores the customers?"),
    ("When can you visit the showroom?", "On Friday.", "Where is the showroom?"),
    ("What is the maximum price per night?", "150.", "What is the minimum price per night?"),
    ("Did the customer confirm the appointment?", "She did.", "Did the customer pay the bill?"),
    ("Who is the contact person at Acme?", "Eve.", "Who is the contact person at Bolt and Sons?"),
    ("How often should the backup run?", "Daily.", "How long does the backup run?"),
    ("Have you tried to restart the router?", "Yes, twice.", "Have you tried another cable for the router?"),
    ("Can I publish the article today?", "Yes.", "Can I share the article on social media today?"),
]
MORE_CONTRADICTIONS = [
    ("The flight departs on Friday", "Your flight departs on Saturday."),
    ("Write the tests in Rust", "I write the tests in Go."),
    ("The discount is 15 percent", "You get the discount of 25 percent."),
    ("Do not call the customer before noon", "I will call the customer before noon."),
    ("Use the eu-west region", "The cluster will use the us-east region."),
    ("Ship by train", "We ship by plane this time."),
    ("The server runs on port 8080", "The server runs on port 9090."),
    ("Backups run daily", "The backups run weekly."),
    ("Always ask Dana before a release", "I never ask Dana before a release."),
    ("The wedding is on June 14", "The wedding is on June 21, isn't that lovely."),
    ("Our currency is EUR", "Our currency is GBP."),
    ("Reserve a table for 4", "I reserve a table for 6 in a moment."),
    ("Green is the color of the brand", "The color of the brand is blue."),
    ("The parcel goes to Munich", "The parcel goes to Vienna."),
    ("We don't store passwords in the logs", "We store passwords in the logs."),
    ("The lead developer is Maria", "The lead developer is Paul."),
]
MORE_CONSISTENT = [
    ("The flight departs on Friday", "Your flight departs on Friday, and you return on Sunday."),
    ("Ship by train", "The plane was too expensive, so we ship by train."),
    ("The server runs on port 8080", "The proxy listens on port 9090 and the server runs on port 8080."),
    ("Reserve a table for 4", "I will reserve a table for 4 at 19:00."),
    ("The parcel goes to Munich", "The letter goes to Vienna."),
    ("The discount is 15 percent", "With the discount of 15 percent you pay 85 dollars."),
    ("Do not call the customer before noon", "I don't call the customer before noon."),
    ("The lead developer is Maria", "Paul is a developer, too."),
    ("Backups run daily", "The report is sent weekly."),
    ("Write the tests in Rust", "The server is in Go."),
]
MORE_PREFERENCES = [
    ("seat", "window", "I booked an aisle seat for you."),
    ("airline", "TAP", "The airline is KLM."),
    ("airport", "LGA", "Your airport is JFK."),
    ("room", "quiet", "You have a room next to the elevator."),
    ("invoice format", "PDF", "The invoice format is CSV."),
    ("contact", "email", "I will contact you by phone."),
]
MORE_WORK = ["collect_invoices", "validate_amounts", "send_reminders"]
MORE_RESTARTED = [
    "I'll collect the invoices first.",
    "Let me collect all invoices of May.",
    "Now validating the amounts.",
    "I am going to validate the amounts of each invoice.",
    "First I need to collect the invoices.",
    "The next step is to validate the amounts.",
    "We start with collecting invoices.",
    "I have to collect the invoices before I can send reminders.",
    "Collecting the invoices again.",
    "I will now validate all amounts.",
]
MORE_GOING_ON = [
    "The invoices are collected and the amounts are validated.",
    "Next I send the reminders for the invoices.",
    "I validated the amounts and found one error.",
    "Now that all invoices have been collected, I send reminders.",
    "Collecting the invoices was the first step.",
    "The validated amounts add up to 900.",
]
MORE_KNOWN = [
    ("My car is a red Volvo", "What car do you drive?"),
    ("I was born in Oslo", "Where were you born?"),
    ("The wifi password is hunter2", "What is the wifi password?"),
    ("Our office is in Madrid", "Where is your office?"),
    ("The contract with Acme ends in 2027", "When does the contract with Acme end?"),
    ("I take my coffee with oat milk", "How do you take your coffee?"),
    ("Eve handles the refunds", "Who handles refunds?"),
    ("The standup starts at 9:30", "What time does the standup start?"),
    ("My manager is Paul", "Who is your manager?"),
    ("The server has 64 GB of memory", "How much memory does the server have?"),
]
MORE_UNKNOWN = [
    ("My car is a red Volvo", "When did you buy your car?"),
    ("Our office is in Madrid", "How many people work in your office?"),
    ("The contract with Acme ends in 2027", "Who signed the contract with Acme?"),
    ("Eve handles the refunds", "How long do refunds take?"),
    ("My manager is Paul", "What does your manager say about the plan?"),
    ("The standup starts at 9:30", "Who leads the standup?"),
]
